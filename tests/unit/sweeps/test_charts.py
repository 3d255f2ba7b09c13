"""The pictures that a sweep's own run shows: which there are, and the data that are drawn in them."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.results import charts, heatmap, pictures
from paceline.sweeps.results.curves import MOST_CURVES, MOST_POINTS, Curve, curves_of
from paceline.sweeps.results.importance import is_log, varied_axes
from paceline.sweeps.results.pictures import (
    CURVES,
    HEATMAP,
    IMPORTANCE,
    PARETO,
    PICTURES,
    SHARES,
    Drawing,
    heatmap_axes,
    pareto_pair,
    pictures_of,
)
from paceline.sweeps.trial import Trial
from paceline.tracking.metric_points import MetricPoint
from support.logged import Logged
from support.sweeps.configs import sweep_config
from support.sweeps.pictures import ACCURACY, BATCH, GRID, LR, RULE, grid_trials, points, trial


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The drawings that are asked for; nothing is drawn, which takes long, nor is scikit-learn imported."""
    asked: list[str] = []

    def drawer(name: str) -> Callable[..., Any]:
        return lambda *given: asked.append(name) or SimpleNamespace(png=lambda: b"png")

    for module, names in ((heatmap, ("heatmap", "field")), (charts, ("pareto", "curves", "importance"))):
        for name in names:
            monkeypatch.setattr(module, name, drawer(name))
    monkeypatch.setattr(pictures, "importances", lambda *given: {BATCH: 0.7, RULE: 0.3})
    return asked


def test_sweep_has_four_pictures_and_one_that_fails_is_a_warning(
    drawn: list[str], monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    def broken(*given: Any) -> None:
        raise MemoryError("password=canary-s3cret")

    trials, histories = grid_trials()
    assert list(pictures_of(GRID, trials, ACCURACY, histories)) == [PARETO, HEATMAP, CURVES, IMPORTANCE, SHARES]
    assert list(PICTURES) == [PARETO, HEATMAP, CURVES, IMPORTANCE]
    monkeypatch.setattr(charts, "curves", broken)
    with logged.at_level(logging.WARNING):
        assert list(pictures_of(GRID, trials, ACCURACY, histories)) == [PARETO, HEATMAP, IMPORTANCE, SHARES]
    [record] = logged.records
    assert CURVES in record.getMessage()
    assert "canary" not in logged.text


def test_ranges_are_drawn_as_dots_and_lists_as_cells(drawn: list[str]) -> None:
    space = {LR: {"loguniform": [1e-4, 1]}, RULE: ["none", "linear"]}
    ranged = sweep_config(space, search="random", num_samples=20)
    trials = [trial(n, {LR: 10 ** (-n / 5), RULE: ["none", "linear"][n % 2]}, 0.5 + n / 50) for n in range(20)]
    for config, ended in [(GRID, grid_trials()[0]), (ranged, trials)]:
        pictures_of(config, ended, ACCURACY, {})
    assert [name for name in drawn if name in ("heatmap", "field")] == ["heatmap", "field"]


@pytest.mark.parametrize("trials", [[], [trial(0, {LR: 0.1}, math.nan, "failed")], [trial(0, {LR: 0.1}, 0.5)]])
def test_pictures_without_enough_trials_are_left_out_in_silence(trials: list[Trial], logged: Logged) -> None:
    assert pictures_of(sweep_config({LR: [0.1, 0.2]}), trials, ACCURACY, {}) == {}
    assert logged.records == []


def test_single_objective_is_drawn_against_its_cost() -> None:
    trials, _ = grid_trials()
    assert pareto_pair(trials, ACCURACY) == (("samples_per_second", "max"), ACCURACY[0])
    slow = [trial(n, {LR: n}, 0.1 * n, samples_per_second=0.0, seconds=1.0 + n) for n in range(3)]
    assert pareto_pair(slow, ACCURACY) == (("seconds", "min"), ACCURACY[0])
    assert pareto_pair(slow, [*ACCURACY, ("samples", "min")]) == (("samples", "min"), ACCURACY[0])
    assert pareto_pair(slow[:1], ACCURACY) is None
    assert pareto_pair(trials, [("samples_per_second", "max")]) == (("seconds", "min"), ("samples_per_second", "max"))


def test_heatmap_is_over_batch_and_rule_or_the_most_important_axes() -> None:
    trials, _ = grid_trials()
    assert heatmap_axes([*trials, trial(99, {BATCH: 64, RULE: "none", LR: 0.3}, 0.1)], {LR: 0.9}) == (BATCH, RULE)
    others = [trial(n, {"a": n, "b": n, "c": n, "same": 1}, 0.1) for n in range(3)]
    assert heatmap_axes(others, {"c": 0.7, "b": 0.2, "a": 0.1}) == ("c", "b")
    assert heatmap_axes(others, {}) == ("a", "b")
    assert heatmap_axes([trial(n, {"a": n, "same": 1}, 0.1) for n in range(3)], {}) is None
    assert varied_axes([trial(0, {"a": 1, "b": True}, 0.1), trial(1, {"a": 1.0, "b": 1}, 0.1)]) == ["b"]


def test_dots_are_means_over_the_seeds() -> None:
    trials = [trial(n, {"x": n // 2, "y": "a", "seed": n % 2}, 0.1 * n) for n in range(4)]
    trials.append(trial(9, {"x": 7, "y": "b"}, 0.9, "pruned"))
    data = heatmap.field_of(trials, ACCURACY[0], "x", "y")
    assert (data.x, data.y, data.best, data.others) == ([1, 0], ["a", "a"], (1, "a"), [(7, "b")])
    assert data.values == pytest.approx([0.25, 0.05])
    with pytest.raises(ValueError, match="val/accuracy"):
        heatmap.field_of(trials[-1:], ACCURACY[0], "x", "y")


def test_curves_are_over_samples_and_bands_over_seeds() -> None:
    found = curves_of(GRID, grid_trials()[0], ACCURACY, grid_trials()[1], "train/loss")
    assert [line.place for line in found] == [1, 2, 3, 4, 5, 6]
    assert [line.name for line in found[:2]] == [f"global_batch_size=64, lr_scaling={n}" for n in ("linear", "sqrt")]
    best, last = found[0], found[-1]
    assert list(best.x) == [33 * 64, 66 * 64, 99 * 64]
    assert list(last.x) == [8 * 256, 16 * 256, 24 * 256]
    assert (list(best.low), list(best.high), best.seeds) == ([2.0, 1.0, 0.5], [2.0, 1.1, 0.5], 2)
    assert list(best.mean) == pytest.approx([2.0, 1.05, 0.5])
    # samples follow from the batch size where no trial has them
    failed = [trial(n, {BATCH: batch}, 0.5, "failed", samples=0) for n, batch in enumerate([64, 256])]
    histories = {each.id: points("train/loss", [2, 1]) for each in failed}
    found = curves_of(sweep_config({BATCH: [64, 256]}), failed, ACCURACY, histories, "train/loss")
    assert [(list(line.x), line.place) for line in found] == [([640, 1280], None), ([2560, 5120], None)]


def line_of(trials: list[Trial], histories: dict[str, list[MetricPoint]]) -> Curve:
    """The curve of trials with one setting."""
    [line] = curves_of(sweep_config({LR: [1, 2]}), trials, ACCURACY, histories, "train/loss")
    return line


def test_mean_is_over_whole_seeds_which_are_interpolated_between_their_steps() -> None:
    trials = [trial(n, {LR: 1, "seed": n}, 0.5) for n in range(2)]
    line = line_of(trials, {"0000": points("train/loss", [4, 3, 2, 1]), "0001": points("train/loss", [4, 2], every=20)})
    assert (line.x[0], line.x[-1], line.seeds) == (1280, 2560, 2)
    assert (line.mean[0], line.mean[-1]) == (pytest.approx(3.5), pytest.approx(1.5))
    trials[1] = replace(trials[1], state="pruned", steps=20, samples=1280)
    line = line_of(trials, {"0000": points("train/loss", [4, 3, 2, 1]), "0001": points("train/loss", [9, 8])})
    assert (list(line.mean), line.seeds) == ([4, 3, 2, 1], 1)


def test_long_curves_are_thinned_to_means_and_keep_their_ends() -> None:
    values = [float(n % 2) for n in range(10 * MOST_POINTS + 7)]
    histories = {"0000": [*points("train/loss", values), MetricPoint("train/loss", math.nan, 999_999, 1)]}
    line = line_of([trial(0, {LR: 1}, 0.5)], histories)
    assert len(line.x) == len(line.mean) == MOST_POINTS
    assert line.mean == pytest.approx(0.5, abs=0.05)
    assert line.x[-1] == pytest.approx(64 * 10 * len(values), rel=0.01)


def test_histories_of_few_settings_are_read_however_many_there_are() -> None:
    read: list[str] = []

    class Recorded(dict[str, list[MetricPoint]]):
        def get(self, name: str, default: Any = None) -> Any:
            read.append(name)
            return points("train/loss", [2, 1])

    trials = [trial(n, {LR: n}, n / 2000) for n in range(2000)]
    found = curves_of(sweep_config({LR: [1, 2]}), trials, ACCURACY, Recorded(), "train/loss")
    assert len(found) == len(read) == MOST_CURVES
    assert {line.place for line in found} >= set(range(1, MOST_CURVES // 2 + 1))


def curve(name: str, values: Sequence[float], place: int | None = None) -> Curve:
    line = np.array(values, dtype=float)
    return Curve(name, np.arange(1.0, len(values) + 1), line, line, line, 1, place)


def test_best_are_named_and_one_that_diverged_takes_no_room() -> None:
    lines = [curve(f"s{n}", [1.0, 0.5 + n / 100], n) for n in range(1, 21)] + [curve("bad", [1e6, 1e6])]
    names = charts.named({"train/loss": lines})
    assert list(names) == [f"s{n}" for n in range(1, 8)]
    assert len(set(names.values())) == 7
    low, high = charts.limits(lines, names)
    assert 0.4 < low < 0.52
    assert 0.5 < high < 3
    assert list(charts.named({"train/loss": [curve("bad", [1.0])]})) == ["bad"]
    beginning_is_cut = curve("s", [100.0, *[0.5] * 98, 0.4], 1)
    assert charts.limits([beginning_is_cut], {"s": "red"}) == (0.4, 0.5)


def test_scale_of_an_axis_follows_from_its_range_or_its_values() -> None:
    space = {LR: {"loguniform": [0.1, 0.2]}, "optimizer.momentum": {"uniform": [0.01, 0.9]}, BATCH: [64, 128]}
    section = section_of(sweep_config(space, search="random", num_samples=2))
    assert is_log(section, LR, [0.1, 0.2])
    assert not is_log(section, "optimizer.momentum", [0.01, 0.9])
    assert [is_log(section, BATCH, values) for values in ([64, 128], [32, 512], [0, 512])] == [False, True, False]


def test_pictures_that_take_too_long_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = Event()
    monkeypatch.setattr("paceline.sweeps.results.pictures.pictures_of", lambda *given: may_end.wait(60) and {})
    drawing = Drawing()
    drawing.start(tmp_path, GRID, [trial(0, {BATCH: 64}, math.nan, "skipped", attempts=0)])
    assert drawing.finish() == {}  # nothing was trained, so nothing is waited for
    drawing.start(tmp_path, GRID, grid_trials()[0])
    assert drawing.finish(0.05) == {}
    may_end.set()
