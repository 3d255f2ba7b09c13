"""The picture and the note on a run's page."""

import math
from pathlib import Path

import pytest
from PIL import Image

from paceline.tracking import metrics
from paceline.tracking.curves import curves_of
from paceline.tracking.note import summary
from paceline.tracking.picture import TRAIN_COLOR, VAL_COLOR, loss_curve
from paceline.tracking.points import Point


def _points(key: str, values: list[float]) -> list[Point]:
    return [Point(key, value, step, step) for step, value in enumerate(values, 1)]


def _shows(picture: Path, color: str) -> bool:
    wanted = tuple(bytes.fromhex(color[1:]))
    with Image.open(picture) as image:
        colors = image.convert("RGB").getcolors(maxcolors=1 << 24) or []
    return any(found == wanted for _, found in colors)


def test_the_picture_shows_both_losses_and_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    both = tmp_path / "both.png"
    training = _points("train/loss", [2.0, math.nan, 1.0, math.inf, 0.5])
    loss_curve(curves_of([*training, *_points("val/loss", [2.0, 1.0])]), both, "mnist $cnn$_1")
    assert _shows(both, TRAIN_COLOR)
    assert _shows(both, VAL_COLOR)
    one = tmp_path / "one.png"
    loss_curve(curves_of(training), one)
    assert _shows(one, TRAIN_COLOR)
    assert not _shows(one, VAL_COLOR)


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finite loss"):
        loss_curve(curves_of([*_points("lr", [0.1]), *_points("train/loss", [math.nan])]), tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_the_note_has_last_and_best_values(tmp_path: Path) -> None:
    points = [
        *_points("val/loss", [2.0, 1.0, 1.5]),
        *_points("val/accuracy", [0.5, 0.9, 0.8]),
        *_points("samples_per_second", [1000.0, 12345.0]),
        Point("samples_per_second_overall", 9876.0, 3, 3),
        *_points("peak_memory_bytes", [2.0**30, 1.5 * 2**30]),
        *_points("tracking/lag_seconds", [1.0, 2.0]),
        *_points("rank_seconds/max", [1.0, 2.0]),
        *_points("validation_epoch", [1.0, 2.0, 3.0]),
        *_points("lr", [0.1, 0.05]),
        *_points("grad_norm", [3.0, 2.0]),
        *_points("skipped_steps", [1.0, 2.0]),
        *_points("data_wait_fraction", [0.5, 0.25, 0.75]),
        *_points("train/loss", [math.nan]),
    ]
    note = summary("mnist-cnn", curves_of(points), "FINISHED", None, {metrics.COMMAND: "paceline train a.yaml"})
    assert "**finished** after 3 optimizer steps, 9,876 samples/s." in note
    assert "| val/loss | 1.5 | 1 | 2 |" in note
    assert "| val/accuracy | 0.8 | 0.9 | 2 |" in note
    waited = (r"data\_wait\_fraction", "0.75")
    for key, last in (("lr", "0.05"), (r"grad\_norm", "2"), (r"skipped\_steps", "2"), waited):
        assert f"| {key} | {last} |  |  |" in note
    assert "| train/loss | nan |  |  |" in note
    assert r"| peak\_memory\_bytes | 1,536 MiB |  |  |" in note
    assert r"| samples\_per\_second | 12,345 samples/s, since the point before | 12,345 | 2 |" in note
    assert r"| samples\_per\_second\_overall | 9,876 samples/s, without the warm-up | 9,876 | 3 |" in note
    keys = [line.split(" | ")[0].removeprefix("| ") for line in note.splitlines() if line.startswith("| ")]
    assert keys[1:5] == ["train/loss", "val/accuracy", "val/loss", r"data\_wait\_fraction"]
    assert keys[5:] == sorted(keys[5:])
    assert not {r"tracking/lag\_seconds", r"rank\_seconds/max", r"validation\_epoch"} & set(keys)


def test_a_run_that_goes_on_has_the_speed_of_its_last_window_in_the_note() -> None:
    note = summary("n", curves_of(_points("samples_per_second", [1000.0, 12345.0])), "KILLED", None, {})
    assert "**killed** after 2 optimizer steps, 12,345 samples/s." in note


def test_the_note_says_how_to_get_the_run_again() -> None:
    tags = {metrics.COMMAND: "paceline train a.yaml", metrics.GIT_COMMIT: "abc123", metrics.GIT_DIRTY: "true"}
    note = summary("n", {}, "FINISHED", None, tags)
    assert "```\ngit checkout abc123\npaceline train a.yaml\n```" in note
    assert "had been changed" in note


def test_what_users_wrote_cannot_become_markup() -> None:
    reason = "```\n<script>alert(1)</script>\n```"
    note = summary("<img src=x>|**b**", curves_of([Point("a|<b>", 1.0, 1, 1)]), "FAILED", reason, {})
    assert "<img" not in note
    assert "**b**" not in note
    assert r"a\|&lt;b&gt;" in note
    assert note.count("```") == 2  # the reason's own fences are gone, so it stays within ours
