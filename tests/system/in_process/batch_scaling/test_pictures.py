"""Pictures of a scale study: the lines, points and marks that are drawn, and the note that shows them."""

import re
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch
from paceline.batch_scaling.findings import NoisePoint, Verification
from paceline.batch_scaling.mlflow_record import note_of
from paceline.batch_scaling.pictures import (
    EFFICIENCY,
    NOISE,
    PICTURES,
    TIME,
    charts_of,
    drawn_pictures,
    files_of,
    pictures_of,
)
from support.batch_scaling.findings import GROWING, LATER, OWN, findings


def legend(axes: Any) -> dict[str, Any]:
    """The artist of each name."""
    artists, names = axes.get_legend_handles_labels()
    return dict(zip(names, artists, strict=True))


def axes_of(picture: str, **changes: Any) -> Any:
    """The axes of a picture of the findings, changed."""
    (axes,) = pictures_of(replace(findings(), **changes))[picture].axes
    return axes


def places(points: Any) -> list[tuple[float, float]]:
    return [tuple(each) for each in points.get_offsets()]


def test_the_branches_lie_at_their_efficiency_beside_the_trade_off() -> None:
    shown = legend(axes_of(EFFICIENCY))
    assert places(shown["linear, from the start"]) == [
        (64, pytest.approx((1 + OWN / 200) / (1 + 64 / 200))),
        (256, pytest.approx((1 + OWN / 200) / (1 + 256 / 200))),
    ]
    assert {"linear, after 4,000 samples", "sqrt, from the start"} <= shown.keys()
    curve = shown["the trade-off"]
    assert (curve.get_xdata()[0], curve.get_ydata()[0]) == (OWN, 1.0)
    assert curve.get_ydata()[-1] == pytest.approx((1 + OWN / 300) / 2)  # at the critical batch size
    assert shown["critical batch size, 300"].get_xdata() == [300, 300]


@pytest.mark.parametrize("critical", [CriticalBatch(inf, inf, inf, ((0, inf),)), None])
@pytest.mark.parametrize("picture", [EFFICIENCY, NOISE])
def test_without_a_critical_batch_size_none_is_marked(picture: str, critical: CriticalBatch | None) -> None:
    assert not [name for name in legend(axes_of(picture, critical=critical)) if "critical" in name]


def test_extrapolated_parts_of_the_time_are_dashed() -> None:
    axes = axes_of(TIME)
    dashed = {
        (tuple(line.get_xdata()), line.get_color()): line.get_linestyle() == "--" or line.is_dashed()
        for line in axes.lines
    }
    own = legend(axes)["2 workers"].get_color()
    parts = {x: is_dashed for (x, color), is_dashed in dashed.items() if color == own}
    assert parts == {(32, 64): False, (64, 128): False, (128, 256): False, (256, 512): True}
    assert all(is_dashed for (_, color), is_dashed in dashed.items() if color != own)


def test_the_interval_of_the_time_is_that_of_the_configs_own_workers() -> None:
    assert "95 % interval" not in legend(axes_of(TIME))
    table = tuple(replace(row, seconds_interval=(row.seconds / 2, row.seconds * 2)) for row in findings().table)
    axes = axes_of(TIME, table=table)
    assert "95 % interval" in legend(axes)
    drawn = [path for each in axes.collections for path in each.get_paths()]
    ends = {(round(x), y) for path in drawn for x, y in path.vertices}
    own = [row for row in table if row.workers == 2]
    expected = {(row.global_batch_size, end) for row in own for end in row.seconds_interval or ()}
    assert all(any(x == at and y == pytest.approx(end) for x, y in ends) for at, end in expected)


@pytest.mark.parametrize(("sizes", "most"), [([32, 64, 128, 256], 4), (list(range(32, 513, 8)), 12), ([64], 1)])
def test_batch_sizes_are_named_as_far_as_there_is_room(sizes: list[int], most: int) -> None:
    table = tuple(replace(findings().table[0], global_batch_size=size, workers=2) for size in sizes)
    named = [label.get_text() for label in axes_of(TIME, table=table).get_xticklabels()]
    assert named[0] == str(sizes[0])
    assert min(most, 3) <= len(named) <= most


def test_what_was_verified_and_what_is_recommended_are_marked() -> None:
    shown = legend(axes_of(TIME))
    verified = places(shown["verified by trainings to the target"])
    assert verified == [(each.batch_sizes[0], pytest.approx(each.seconds)) for each in findings().verifications]
    assert places(shown["recommended"]) == [(128, 0.36)]
    predicted = legend(axes_of(TIME, measured_seconds=None, verifications=()))
    assert places(predicted["recommended"]) == [(128, 0.35)]
    assert "recommended" not in legend(axes_of(TIME, recommended={}))


def test_a_batch_size_that_grows_is_marked_at_its_end() -> None:
    grown = Verification((64, 256), (9_000, 9_500), (9_000.0, 9_500.0), (2e-5, 2.1e-5))
    shown = legend(axes_of(TIME, recommended=GROWING, verifications=(*findings().verifications, grown)))
    assert places(shown["recommended, growing from 64"]) == [(256, 0.36)]
    assert places(shown["verified by trainings to the target"])[-1][0] == 256


def test_the_noise_scale_has_its_interval_and_the_critical_batch_sizes() -> None:
    axes = axes_of(NOISE)
    shown = legend(axes)
    assert list(shown["noise scale"].get_ydata()) == [80.0, 150.0]
    assert places(shown["critical batch size, from branches"]) == [(0, 200.0), (LATER, 420.0)]
    heights = shown["its 95 % interval"].get_paths()[0].vertices[:, 1]
    # the second interval has no end: it reaches to the edge
    assert (min(heights), max(heights)) == (60.0, axes.get_ylim()[1])


def test_the_noise_scale_has_a_gap_where_none_was_measured() -> None:
    noise = tuple(NoisePoint(samples, 80.0, 60.0, 110.0) for samples in (100, 200, 300, 900, 1000))
    axes = axes_of(NOISE, noise=noise)
    lines = [list(line.get_xdata()) for line in axes.lines if line.get_zorder() == 3]
    assert lines == [[100, 200, 300], [900, 1000]]
    assert len(axes.collections) == 3  # two bands, and the critical batch sizes


def test_what_was_not_measured_is_not_drawn() -> None:
    assert list(pictures_of(findings())) == drawn_pictures(findings()) == list(PICTURES)
    bare = replace(findings(), branches=(), table=(), noise=(), critical=None)
    assert (pictures_of(bare), drawn_pictures(bare), charts_of(bare)) == ({}, [], [])
    assert "get-artifact" not in note_of("toy", bare, "id")


def test_the_pictures_are_files_and_the_note_shows_them() -> None:
    assert all(data.startswith(b"\x89PNG") for data in files_of(findings()).values())
    shown = re.findall(r"\]\(get-artifact\?path=([\w.]+)&run_uuid=id\)", note_of("toy", findings(), "id"))
    assert shown == list(PICTURES)
    assert "get-artifact" not in note_of("toy", findings())  # before MLflow has given it a run
