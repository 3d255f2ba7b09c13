"""The pictures of a sweep as files: what goes into them, and that nothing about them fails a sweep."""

import json
import logging
import math
import random
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.sweeps.results import charts, pictures
from paceline.sweeps.results.curves import MOST_CURVES, MOST_POINTS, Curve, Histories, curves_of, panels
from paceline.sweeps.results.drawing import Drawing
from paceline.sweeps.results.importance import importances, is_log, varied_axes
from paceline.sweeps.results.pictures import (
    CURVES,
    HEATMAP,
    IMPORTANCE,
    PARETO,
    PICTURES,
    heatmap_axes,
    histories_of,
    pareto_pair,
    pictures_of,
)
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.results.record import note_of
from paceline.sweeps.trials import Trial, TrialState
from paceline.tracking.journal import Journal
from paceline.tracking.points import Point
from paceline.tracking.recorder import JOURNAL_FILE
from sweeps.launches import launch_of

ACCURACY: list[Objective] = [("val/accuracy", "max")]
BATCH, RULE, LR = "data.global_batch_size", "optimizer.lr_scaling", "optimizer.lr"


def config(space: dict[str, Any], **section: Any) -> ExperimentConfig:
    sweep = {"space": space, "metric": "val/accuracy", "mode": "max", **section}
    return validate({"name": "run", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, "sweep": sweep})


def trial(
    number: int, overrides: dict[str, Any], accuracy: float, state: TrialState = "finished", **more: Any
) -> Trial:
    given = {"steps": 100, "samples": 6400, "samples_per_second": 100.0 + number, "seconds": 5.0, "attempts": 1}
    return Trial(f"{number:04}", overrides, state, metrics={"val/accuracy": accuracy}, **{**given, **more})


def points(key: str, values: Sequence[float], every: int = 10) -> list[Point]:
    return [Point(key, value, every * place, place) for place, value in enumerate(values, 1)]


GRID = config({BATCH: [64, 256], RULE: ["none", "sqrt", "linear"]}, seeds=2)


def grid_trials() -> tuple[list[Trial], Histories]:
    """A small grid with two seeds each; larger batches see more samples a step."""
    trials, histories = [], {}
    for number in range(12):
        batch, rule, seed = [64, 256][number // 6], ["none", "sqrt", "linear"][number // 2 % 3], number % 2
        best = 0.9 - 0.1 * (batch == 256) + 0.02 * (number // 2 % 3) + 0.01 * seed
        overrides = {BATCH: batch, RULE: rule, "seed": seed}
        trials.append(trial(number, overrides, best, steps=6400 // batch))
        losses = points("train/loss", [2.0, 1.0 + 0.1 * seed, 0.5], every=6400 // batch // 3)
        histories[f"{number:04}"] = [*losses, *points("val/accuracy", [0.5, best], every=3200 // batch)]
    return trials, histories


def size(data: bytes) -> tuple[int, int]:
    with Image.open(BytesIO(data)) as image:
        assert image.format == "PNG"
        assert len(set(image.convert("RGB").resize((64, 64)).getdata())) > 20
        return image.size


def test_a_sweep_has_all_four_pictures() -> None:
    trials, histories = grid_trials()
    drawn = pictures_of(GRID, trials, ACCURACY, histories)
    assert list(drawn) == [PARETO, HEATMAP, CURVES, IMPORTANCE] == list(PICTURES)
    for data in drawn.values():
        width, height = size(data)
        assert 300 < width < 1300
        assert 150 < height < 900


def test_the_same_trials_make_the_same_files() -> None:
    assert pictures_of(GRID, *_all_of_the_grid()) == pictures_of(GRID, *_all_of_the_grid())


def _all_of_the_grid() -> tuple[list[Trial], list[Objective], Histories]:
    trials, histories = grid_trials()
    return trials, ACCURACY, histories


@pytest.mark.parametrize("trials", [[], [trial(0, {LR: 0.1}, math.nan, "failed")], [trial(0, {LR: 0.1}, 0.5)]])
def test_where_there_is_too_little_pictures_are_left_out_in_silence(
    trials: list[Trial], caplog: pytest.LogCaptureFixture
) -> None:
    assert pictures_of(config({LR: [0.1, 0.2]}), trials, ACCURACY, {}) == {}
    assert caplog.records == []


def test_a_picture_that_cannot_be_drawn_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: Any) -> None:
        raise MemoryError("password=canary-s3cret")

    monkeypatch.setattr(charts, "curves", broken)
    trials, histories = grid_trials()
    with caplog.at_level(logging.WARNING):
        drawn = pictures_of(GRID, trials, ACCURACY, histories)
    assert list(drawn) == [PARETO, HEATMAP, IMPORTANCE]
    assert "curves.png could not be drawn: MemoryError" in caplog.text
    assert "canary" not in caplog.text


def test_text_is_never_a_formula_and_odd_characters_are_drawn() -> None:
    odd = "$\\frac{<script>日本\n"
    trials, histories = grid_trials()
    trials = [
        Trial(each.id, {f"model.{odd}": each.overrides[BATCH], RULE: odd + each.overrides[RULE]}, "finished", "",
              {odd: each.metrics["val/accuracy"]}, attempts=1, samples_per_second=each.samples_per_second, steps=10)
        for each in trials
    ]  # fmt: skip
    histories = {name: [Point(odd, 0.1 * n, n, n) for n in range(1, 5)] for name in histories}
    assert set(pictures_of(GRID, trials, [(odd, "max")], histories)) == set(PICTURES)


# What the pictures are about


def test_a_single_objective_is_drawn_against_what_it_costs() -> None:
    trials, _ = grid_trials()
    assert pareto_pair(trials, ACCURACY) == (("samples_per_second", "max"), ACCURACY[0])
    slow = [trial(n, {LR: n}, 0.1 * n, samples_per_second=0.0, seconds=1.0 + n) for n in range(3)]
    assert pareto_pair(slow, ACCURACY) == (("seconds", "min"), ACCURACY[0])
    assert pareto_pair(slow, [*ACCURACY, ("samples", "min")]) == (("samples", "min"), ACCURACY[0])
    assert pareto_pair(slow[:1], ACCURACY) is None
    assert pareto_pair(trials, [("samples_per_second", "max")]) == (("seconds", "min"), ("samples_per_second", "max"))


def test_the_heatmap_is_over_batch_and_rule_or_what_matters_most() -> None:
    trials, _ = grid_trials()
    assert heatmap_axes([*trials, trial(99, {BATCH: 64, RULE: "none", LR: 0.3}, 0.1)], {LR: 0.9}) == (BATCH, RULE)
    others = [trial(n, {"a": n, "b": n, "c": n, "same": 1}, 0.1) for n in range(3)]
    assert heatmap_axes(others, {"c": 0.7, "b": 0.2, "a": 0.1}) == ("c", "b")
    assert heatmap_axes(others, {}) == ("a", "b")
    assert heatmap_axes([trial(n, {"a": n, "same": 1}, 0.1) for n in range(3)], {}) is None
    assert varied_axes([trial(0, {"a": 1, "b": True}, 0.1), trial(1, {"a": 1.0, "b": 1}, 0.1)]) == ["b"]


def test_ranges_are_drawn_as_dots_and_lists_as_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    inner = charts.field
    monkeypatch.setattr(charts, "field", lambda *given: (drawn.append("dots"), inner(*given))[1])
    trials, _ = grid_trials()
    assert HEATMAP in pictures_of(GRID, trials, ACCURACY, {})
    assert drawn == []
    ranged = config({LR: {"loguniform": [1e-4, 1]}, RULE: ["none", "linear"]}, search="random", num_samples=20)
    trials = [trial(n, {LR: 10 ** (-n / 5), RULE: ["none", "linear"][n % 2]}, 0.5 + n / 50) for n in range(20)]
    assert HEATMAP in pictures_of(ranged, trials, ACCURACY, {})
    assert drawn == ["dots"]


def test_dots_are_means_and_tell_the_best_and_those_without_a_value() -> None:
    trials = [trial(n, {"x": n // 2, "y": "a", "seed": n % 2}, 0.1 * n) for n in range(4)]
    trials.append(trial(9, {"x": 7, "y": "b"}, 0.9, "pruned"))
    data = charts.field_of(trials, ACCURACY[0], "x", "y")
    assert (data.x, data.y, data.best, data.others) == ([1, 0], ["a", "a"], (1, "a"), [(7, "b")])
    assert data.values == pytest.approx([0.25, 0.05])
    with pytest.raises(ValueError, match="nothing to draw"):
        charts.field_of(trials[-1:], ACCURACY[0], "x", "y")


def test_a_value_far_off_does_not_take_all_colours() -> None:
    values = [0.9 + n / 1000 for n in range(20)]
    assert charts.color_range([*values, 0.1], ("a", "max")) == (pytest.approx(0.87, abs=0.02), 0.919)
    assert charts.color_range([*values, 1e9], ("a", "min")) == (0.9, pytest.approx(0.95, abs=0.02))
    assert charts.color_range(values, ("a", "max")) == (0.9, 0.919)


# Curves


def curve(name: str, values: Sequence[float], place: int | None = None, x: Sequence[float] | None = None) -> Curve:
    line = np.array(values, dtype=float)
    return Curve(name, np.array(x or range(1, len(values) + 1), dtype=float), line, line, line, 1, place)


def test_curves_are_over_samples_and_bands_over_seeds() -> None:
    trials, histories = grid_trials()
    found = curves_of(GRID, trials, ACCURACY, histories, "train/loss")
    assert len(found) == 6
    assert [line.place for line in found] == [1, 2, 3, 4, 5, 6]
    assert [line.name for line in found[:2]] == [
        "global_batch_size=64, lr_scaling=linear",
        "global_batch_size=64, lr_scaling=sqrt",
    ]
    best, last = found[0], found[-1]
    assert list(best.x) == [33 * 64, 66 * 64, 99 * 64]
    assert list(last.x) == [8 * 256, 16 * 256, 24 * 256]
    assert (list(best.low), list(best.high), best.seeds) == ([2.0, 1.0, 0.5], [2.0, 1.1, 0.5], 2)
    assert list(best.mean) == pytest.approx([2.0, 1.05, 0.5])


def test_seeds_that_ended_early_do_not_bend_the_mean() -> None:
    trials = [trial(0, {LR: 1, "seed": 0}, 0.5), trial(1, {LR: 1, "seed": 1}, 0.5, "pruned", steps=20, samples=1280)]
    histories = {"0000": points("train/loss", [4, 3, 2, 1]), "0001": points("train/loss", [9, 8])}
    [line] = curves_of(config({LR: [1, 2]}), trials, ACCURACY, histories, "train/loss")
    assert (list(line.mean), line.seeds) == ([4, 3, 2, 1], 1)


def test_seeds_at_other_steps_are_brought_together() -> None:
    trials = [trial(n, {LR: 1, "seed": n}, 0.5) for n in range(2)]
    histories = {"0000": points("train/loss", [4, 3, 2, 1]), "0001": points("train/loss", [4, 2], every=20)}
    [line] = curves_of(config({LR: [1, 2]}), trials, ACCURACY, histories, "train/loss")
    assert (line.x[0], line.x[-1], line.seeds) == (1280, 2560, 2)
    assert line.mean[0] == pytest.approx(3.5)
    assert line.mean[-1] == pytest.approx(1.5)


def test_without_samples_the_configs_batch_tells_them() -> None:
    trials = [trial(n, {BATCH: batch}, 0.5, "failed", samples=0) for n, batch in enumerate([64, 256])]
    histories = {each.id: points("train/loss", [2, 1]) for each in trials}
    found = curves_of(config({BATCH: [64, 256]}), trials, ACCURACY, histories, "train/loss")
    assert [list(line.x) for line in found] == [[640, 1280], [2560, 5120]]
    assert [line.place for line in found] == [None, None]


def test_long_curves_are_thinned_to_means_and_keep_their_ends() -> None:
    values = [float(n % 2) for n in range(10 * MOST_POINTS + 7)]
    histories = {"0000": [*points("train/loss", values), Point("train/loss", math.nan, 999_999, 1)]}
    [line] = curves_of(config({LR: [1, 2]}), [trial(0, {LR: 1}, 0.5)], ACCURACY, histories, "train/loss")
    assert len(line.x) == len(line.mean) == MOST_POINTS
    assert line.mean == pytest.approx(0.5, abs=0.05)
    assert line.x[-1] == pytest.approx(64 * 10 * len(values), rel=0.01)


def test_two_panels_at_the_most_and_only_of_what_was_logged() -> None:
    trials, histories = grid_trials()
    assert list(panels(GRID, trials, ACCURACY, histories)) == ["train/loss", "val/accuracy"]
    assert list(panels(GRID, trials, [("samples_per_second", "max")], histories)) == ["train/loss"]
    assert panels(GRID, trials, ACCURACY, {}) == {}


def test_of_many_settings_the_best_are_read_and_some_of_the_others() -> None:
    read: list[str] = []

    class Noted(dict[str, list[Point]]):
        def get(self, name: str, default: Any = None) -> Any:
            read.append(name)
            return points("train/loss", [2, 1])

    trials = [trial(n, {LR: n}, n / 2000) for n in range(2000)]
    found = curves_of(config({LR: [1, 2]}), trials, ACCURACY, Noted(), "train/loss")
    assert len(found) == len(read) == MOST_CURVES
    assert {line.place for line in found} >= set(range(1, MOST_CURVES // 2 + 1))


def test_the_best_are_named_and_one_that_diverged_takes_no_room() -> None:
    lines = [curve(f"s{n}", [1.0, 0.5 + n / 100], n) for n in range(1, 21)] + [curve("bad", [1e6, 1e6])]
    names = charts.named({"train/loss": lines})
    assert list(names) == [f"s{n}" for n in range(1, 8)]
    assert len(set(names.values())) == 7
    low, high = charts.limits(lines, names)
    assert 0.4 < low < 0.52
    assert 0.5 < high < 3
    assert list(charts.named({"train/loss": [curve("bad", [1.0])]})) == ["bad"]


def test_the_beginning_may_leave_the_frame() -> None:
    line = curve("s", [100.0, *[0.5] * 98, 0.4], 1)
    assert charts.limits([line], {"s": "red"}) == (0.4, 0.5)


# Importance


def test_the_axis_that_matters_comes_first() -> None:
    rng = random.Random(0)
    space = {LR: {"loguniform": [1e-4, 1]}, BATCH: [32, 64], RULE: ["none", "linear"]}
    section = config(space, search="random", num_samples=40).sweep
    assert section is not None
    trials = []
    for number in range(40):
        lr = 10 ** rng.uniform(-4, 0)
        overrides = {LR: lr, BATCH: rng.choice([32, 64]), RULE: rng.choice(["none", "linear"])}
        value = 0.9 - 0.05 * (math.log10(lr) + 2) ** 2 - 0.05 * (overrides[RULE] == "none")
        trials.append(trial(number, overrides, value))
    shares = importances(section, trials, ACCURACY[0])
    assert list(shares) == [LR, RULE, BATCH]
    assert shares[LR] > 0.6
    assert sum(shares.values()) == pytest.approx(1)
    wild = [*trials, trial(99, {LR: 0.5, BATCH: 32, RULE: "none"}, -1e9)]
    assert next(iter(importances(section, wild, ACCURACY[0]))) == LR
    assert importances(section, trials[:5], ACCURACY[0]) == {}
    assert importances(section, [trial(n, each.overrides, 0.5) for n, each in enumerate(trials)], ACCURACY[0]) == {}
    assert importances(section, [trial(n, {LR: n}, n / 50) for n in range(20)], ACCURACY[0]) == {}


def test_seeds_are_no_axis_and_one_mean_each() -> None:
    trials, _ = grid_trials()
    assert GRID.sweep is not None
    assert set(importances(GRID.sweep, trials, ACCURACY[0])) == {BATCH, RULE}


def test_numbers_are_compared_as_they_were_drawn() -> None:
    section = config(
        {LR: {"loguniform": [0.1, 0.2]}, "optimizer.momentum": {"uniform": [0.01, 0.9]}, BATCH: [64, 128]},
        search="random",
        num_samples=2,
    ).sweep
    assert section is not None
    assert is_log(section, LR, [0.1, 0.2])
    assert not is_log(section, "optimizer.momentum", [0.01, 0.9])
    assert not is_log(section, BATCH, [64, 128])
    assert is_log(section, BATCH, [32, 512])
    assert not is_log(section, BATCH, [0, 512])


# Wired up


def write_histories(folder: Path, histories: Histories) -> None:
    for name, own in histories.items():
        journal = Journal(folder / "trials" / name / "tracking" / JOURNAL_FILE)
        journal.append([("point", point.to_json()) for point in own])
        journal.close()


def test_pictures_are_drawn_aside_and_named_in_the_note(tmp_path: Path) -> None:
    trials, histories = grid_trials()
    launch = launch_of(GRID, tmp_path)
    write_histories(launch.folder.path, histories)
    drawing = Drawing()
    drawing.prepare(GRID, trials[:0])
    drawing.start(launch.folder.path, GRID, trials)
    drawn = drawing.finish(60)
    assert set(drawn) == set(PICTURES)
    note = note_of(launch, trials, "finished", "", None, {name: PICTURES[name] for name in drawn})
    assert all(f"**{name}**" in note for name in PICTURES)
    assert "get-artifact" not in note  # MLflow's id of the run is not known
    (launch.folder.tracking).mkdir(exist_ok=True)
    (launch.folder.tracking / "shipped.json").write_text('{"run_id": "abc123", "experiment_id": "1"}')
    note = note_of(launch, trials, "finished", "", None, {PARETO: PICTURES[PARETO]})
    assert "(get-artifact?path=pareto.png&run_uuid=abc123)" in note
    launch.claimed.release()


def test_nothing_is_drawn_of_a_sweep_that_trained_nothing(tmp_path: Path) -> None:
    drawing = Drawing()
    drawing.start(tmp_path, GRID, [trial(0, {BATCH: 64}, math.nan, "skipped", attempts=0)])
    assert drawing.finish() == {}


def test_pictures_that_take_too_long_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sweeps.results.drawing.pictures_of", lambda *given: time.sleep(2))
    drawing = Drawing()
    drawing.start(tmp_path, GRID, grid_trials()[0])
    start = time.monotonic()
    assert drawing.finish(0.1) == {}
    assert time.monotonic() - start < 1


def test_two_hundred_trials_of_a_thousand_points_take_seconds(tmp_path: Path) -> None:
    space = {LR: {"loguniform": [1e-4, 1]}, "optimizer.momentum": {"uniform": [0, 0.99]}, BATCH: [64, 128, 256]}
    own = config(space, search="random", num_samples=200)
    rng = random.Random(0)
    trials = []
    for number in range(200):
        overrides: dict[str, Any] = {LR: 10 ** rng.uniform(-4, 0), BATCH: rng.choice([64, 128])}
        overrides["optimizer.momentum"] = rng.uniform(0, 0.99)
        trials.append(trial(number, overrides, rng.random(), steps=4000))
    launch = launch_of(own, tmp_path)
    keys = ("train/loss", "lr", "epoch", "samples_per_second", "val/accuracy")
    for each in trials:
        own_points = [Point(key, rng.random(), step, step) for step in range(1, 201) for key in keys]
        lines = [
            json.dumps({"n": 1, "kind": "point", **point.to_json()}, separators=(",", ":")) for point in own_points
        ]
        folder = launch.folder.trials / each.id / "tracking"
        folder.mkdir(parents=True)
        (folder / JOURNAL_FILE).write_text("\n".join(lines) + "\n")
    pictures.warm_up(own)
    start, used = time.perf_counter(), time.process_time()
    drawn = pictures_of(own, trials, ACCURACY, histories_of(launch.folder.path, trials, ACCURACY))
    note = note_of(launch, trials, "finished", "", None, {name: PICTURES[name] for name in drawn})
    assert time.process_time() - used < 15
    assert time.perf_counter() - start < 30
    assert set(drawn) == set(PICTURES)
    assert "... and 180 more" in note
    launch.claimed.release()
