"""Heatmaps and Pareto fronts of a sweep: what is drawn in them."""

import math
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from paceline.reports.figure import Picture, color_map
from paceline.sweeps.results import charts, heatmap
from paceline.sweeps.results.parallel_coordinates import parallel_coordinates
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import Trial

ACCURACY: list[Objective] = [("val/accuracy", "max")]
BOTH: list[Objective] = [("val/accuracy", "max"), ("seconds", "min")]


def trial(id: int, x: Any, y: Any, accuracy: float, state: TrialState = "finished", **more: Any) -> Trial:
    seconds = more.pop("seconds", 1.0)
    params = {"data.global_batch_size": x, "optimizer.lr_scaling": y, **more}
    return Trial(f"{id:04}", params, state, metrics={"val/accuracy": accuracy}, seconds=seconds)


def heatmap_of(trials: list[Trial], objectives: list[Objective] = ACCURACY, metric: Any = None) -> Picture:
    return heatmap.heatmap(trials, objectives, "global_batch_size", "optimizer.lr_scaling", metric)


def cells(picture: Picture) -> dict[tuple[float, float], list[str]]:
    """The lines in each cell, by column and row."""
    return {text.get_position(): text.get_text().split("\n") for text in picture.axes[0].texts}


def outlined(picture: Picture) -> tuple[float, float]:
    """Column and row of the outlined cell."""
    [box] = [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]
    return box.get_x() + 0.5, box.get_y() + 0.5


GRID = [
    trial(1, 256, "none", 0.5),
    trial(2, 64, "none", 0.7),
    trial(3, 1024, "none", 0.2, "pruned"),
    trial(4, 256, "linear", 0.9),
    trial(5, 64, "linear", 0.6, "failed"),
]


def test_numbers_ascend_and_other_values_keep_their_order() -> None:
    axes = heatmap_of([*reversed(GRID), trial(6, "auto", "sqrt", 0.1), trial(7, 1e-3, True, 0.1)]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.001", "64", "256", "1024", "auto"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "linear", "sqrt", "true"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("global_batch_size", "lr_scaling")


@pytest.mark.parametrize(("worst", "marked"), [(0.1, "min"), (0.9, "neither")])
def test_values_beyond_the_colours_are_marked_on_the_bar(worst: float, marked: str) -> None:
    trials = [trial(number, 2**number, "none", 0.9 + 0.01 * number) for number in range(8)]
    picture = heatmap_of([*trials, trial(8, 1, "linear", worst)])
    colorbar = picture.axes[0].images[0].colorbar
    assert colorbar is not None
    assert colorbar.extend == marked


@pytest.mark.parametrize(("mode", "best", "value"), [("max", (1, 1), 0.9), ("min", (1, 0), 0.5)])
def test_cells_hold_values_or_endings_and_the_best_is_outlined_and_the_brightest(
    mode: Any, best: tuple[int, int], value: float
) -> None:
    picture = heatmap_of(GRID, [("val/accuracy", mode)])
    values = {(0, 0): ["0.7"], (1, 0): ["0.5"], (2, 0): ["pruned"], (0, 1): ["failed"], (1, 1): ["0.9"]}
    assert (cells(picture), outlined(picture)) == (values, best)
    image = picture.axes[0].images[0]
    assert to_hex(image.cmap(image.norm(value))) == to_hex(color_map("max")(1.0))


def test_cell_is_the_mean_over_seeds_and_the_best_of_further_axes() -> None:
    trials = [trial(n, 64, "none", 0.8 + n / 100, seed=n) for n in range(3)]
    trials += [trial(3 + n, 256, "none", 0.99, "failed" if n else "finished", seed=n) for n in range(3)]
    picture = heatmap_of(trials)
    assert cells(picture) == {(0, 0): ["0.81", "± 0.01"], (1, 0): ["0.99", "1 of 3"]}
    assert outlined(picture) == (0, 0)
    trials = [trial(n, 64, "none", value, **{"optimizer.lr": n}) for n, value in enumerate([0.3, 0.8, math.nan])]
    picture = heatmap_of(trials)
    assert cells(picture) == {(0, 0): ["0.8"]}
    assert len(picture.axes[0].get_title(loc="left").splitlines()) == 2


def test_metric_that_is_no_objective_brings_its_direction(golden: Any) -> None:
    trials = [Trial(f"{n}", {"a.x": n, "a.y": 0}, "finished", metrics={"f": n, "acc": -n}) for n in range(3)]
    assert outlined(heatmap.heatmap(trials, [("acc", "max")], "x", "y", ("f", "max"))) == (2, 0)
    assert outlined(heatmap.heatmap(trials, [("acc", "max")], "x", "y", "seconds")) == (0, 0)
    with pytest.raises(ValueError, match="'f'") as caught:
        heatmap.heatmap(trials, [("acc", "max")], "x", "y", "f")
    golden(str(caught.value))


FRONT = [
    trial(1, 64, "a", 0.9, seconds=9.0),
    trial(2, 64, "b", 0.8, seconds=4.0),
    trial(3, 64, "c", 0.7, seconds=5.0),
    trial(4, 64, "d", 0.6, seconds=1.0),
    trial(5, 64, "e", 0.99, "pruned", seconds=0.1),
]
UNFINISHED = [trial(1, 1, 1, 0.5, "failed"), trial(2, 2, 2, math.nan)]
WRONG: dict[str, Any] = {
    "axis": lambda: heatmap.heatmap(GRID, ACCURACY, "nothing", "lr_scaling"),
    "same axis twice": lambda: heatmap.heatmap(GRID, ACCURACY, "lr_scaling", "optimizer.lr_scaling"),
    "metric": lambda: heatmap.heatmap(GRID, ACCURACY, "global_batch_size", "lr_scaling", "val/f1"),
    "nothing finished": lambda: heatmap_of(UNFINISHED),
    "no trials": lambda: heatmap_of([]),
    "empty front": lambda: charts.pareto(UNFINISHED, BOTH),
    "metric of a front": lambda: charts.pareto(FRONT, BOTH, x="val/f1"),
    "one metric": lambda: charts.pareto(FRONT, ACCURACY),
    "same metric twice": lambda: charts.pareto(FRONT, ACCURACY, "seconds", "seconds"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_choice_is_an_error_that_names_the_right_ones(kind: str, golden: Any) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        WRONG[kind]()
    golden(str(caught.value))


def test_front_is_joined_by_steps_and_named() -> None:
    axes = charts.pareto(FRONT, BOTH).axes[0]
    [line] = axes.lines
    assert list(zip(*line.get_data(), strict=True)) == [(0.6, 1.0), (0.8, 4.0), (0.9, 9.0)]
    assert line.get_drawstyle() == "steps-pre"
    [turned] = charts.pareto(FRONT, ACCURACY, x="seconds").axes[0].lines
    assert (turned.get_drawstyle(), list(turned.get_xdata())) == ("steps-post", [1.0, 4.0, 9.0])
    assert len(axes.collections[0].get_offsets()) == 4
    assert ("val/accuracy" in axes.get_xlabel(), "seconds" in axes.get_ylabel()) == (True, True)
    *numbers, legend = [text.get_text() for text in axes.texts]
    assert numbers == ["1", "2", "4"]  # as in the ranking, in which c is the third
    assert [line.split() for line in legend.splitlines()] == [
        [number, "global_batch_size=64,", f"lr_scaling={name}"] for number, name in (("1", "a"), ("2", "b"), ("4", "d"))
    ]


def test_settings_with_fewer_seeds_are_drawn_apart() -> None:
    trials = [trial(n, 64, "a", 0.5, seed=n) for n in range(2)] + [trial(9, 64, "lucky", 0.9, seed=0)]
    picture = charts.pareto(trials, BOTH)
    others, apart, front = picture.axes[0].collections
    assert [len(points.get_offsets()) for points in (others, apart, front)] == [1, 1, 1]
    assert len(picture.legends[0].get_texts()) == 3


def test_parallel_coordinates_have_a_line_for_each_setting() -> None:
    trials = [*GRID, trial(6, 64, "sqrt", 0.95, seed=1), trial(7, 64, "sqrt", 0.85, seed=2)]
    picture = parallel_coordinates(trials, ("val/accuracy", "max"))
    axes = picture.axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    finished = {(each.params["data.global_batch_size"], each.params["optimizer.lr_scaling"]) for each in trials}
    assert len(lines) == len(finished) - 2  # the pruned and the failed one
    assert [label.get_text() for label in axes.get_xticklabels()] == ["global_batch_size", "lr_scaling"]
    (best,) = [line for line in lines if line.get_linewidth() == 3.0]
    assert list(best.get_ydata()) == [0.0, 1.0]  # the smallest batch, the rule that comes up last


@pytest.mark.parametrize("trials", [[], GRID[2:3], [trial(1, 64, "none", 0.5), trial(2, 64, "none", 0.6)]])
def test_parallel_coordinates_of_too_little_are_refused(trials: list[Trial]) -> None:
    with pytest.raises(ValueError, match="parallel coordinates"):
        parallel_coordinates(trials, ("val/accuracy", "max"))
