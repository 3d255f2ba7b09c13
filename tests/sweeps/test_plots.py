"""Pictures of a sweep: what is written and drawn in them."""

import math
from io import BytesIO
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from PIL import Image

from paceline.sweeps.results import plots
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.trials import Trial, TrialState

ACCURACY: list[Objective] = [("val/accuracy", "max")]
BOTH: list[Objective] = [("val/accuracy", "max"), ("seconds", "min")]


def trial(id: int, x: Any, y: Any, accuracy: float, state: TrialState = "finished", **more: Any) -> Trial:
    seconds = more.pop("seconds", 1.0)
    overrides = {"data.global_batch_size": x, "optimizer.lr_scaling": y, **more}
    return Trial(f"{id:04}", overrides, state, metrics={"val/accuracy": accuracy}, seconds=seconds)


def heatmap(trials: list[Trial], objectives: list[Objective] = ACCURACY, metric: Any = None) -> plots.Picture:
    return plots.heatmap(trials, objectives, "global_batch_size", "optimizer.lr_scaling", metric)


def cells(picture: plots.Picture) -> dict[tuple[float, float], str]:
    """The texts by their column and row."""
    return {text.get_position(): text.get_text() for text in picture.axes[0].texts}


def outlined(picture: plots.Picture) -> tuple[float, float]:
    [box] = [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]
    return box.get_x() + 0.5, box.get_y() + 0.5


GRID = [
    trial(1, 256, "none", 0.5),
    trial(2, 64, "none", 0.7),
    trial(3, 1024, "none", 0.2, "pruned"),
    trial(4, 256, "linear", 0.9),
    trial(5, 64, "linear", 0.6, "failed"),
]


def test_cells_hold_values_or_how_the_trials_ended() -> None:
    assert cells(heatmap(GRID)) == {(1, 0): "0.5", (0, 0): "0.7", (2, 0): "pruned", (1, 1): "0.9", (0, 1): "failed"}


def test_numbers_ascend_and_text_keeps_its_order() -> None:
    axes = heatmap([*reversed(GRID), trial(6, "auto", "sqrt", 0.1), trial(7, 1e-3, True, 0.1)]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.001", "64", "256", "1024", "auto"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "linear", "sqrt", "true"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("global_batch_size", "lr_scaling")


def test_the_best_cell_is_outlined_and_the_brightest() -> None:
    picture = heatmap(GRID)
    assert outlined(picture) == (1, 1)
    image = picture.axes[0].images[0]
    assert to_hex(image.cmap(image.norm(0.9))) == to_hex(image.cmap(1.0)) == "#fde725"
    lowest = heatmap(GRID, [("val/accuracy", "min")])
    assert outlined(lowest) == (1, 0)
    image = lowest.axes[0].images[0]
    assert to_hex(image.cmap(image.norm(0.5))) == "#fde725"


def test_text_is_dark_on_bright_and_bright_on_dark() -> None:
    colors = {text.get_text(): text.get_color() for text in heatmap(GRID).axes[0].texts}
    assert (colors["0.9"], colors["0.5"]) == ("black", "white")


def test_seeds_are_averaged_and_missing_ones_told() -> None:
    trials = [trial(n, 64, "none", 0.8 + n / 100, seed=n) for n in range(3)]
    trials += [trial(3 + n, 256, "none", 0.99, "failed" if n else "finished", seed=n) for n in range(3)]
    picture = heatmap(trials)
    assert cells(picture) == {(0, 0): "0.81\n± 0.01", (1, 0): "0.99\n1 of 3"}
    assert outlined(picture) == (0, 0)
    assert picture.axes[0].get_title(loc="left") == "val/accuracy: mean ± standard deviation over 3 seeds"


def test_of_further_axes_the_best_is_shown() -> None:
    trials = [trial(n, 64, "none", value, **{"optimizer.lr": n}) for n, value in enumerate([0.3, 0.8, math.nan])]
    picture = heatmap(trials)
    assert cells(picture) == {(0, 0): "0.8"}
    assert picture.axes[0].get_title(loc="left").splitlines() == ["val/accuracy", "in each cell the best of lr"]


def test_a_metric_that_is_no_objective_brings_its_direction() -> None:
    trials = [Trial(f"{n}", {"a.x": n, "a.y": 0}, "finished", metrics={"f": n, "acc": -n}) for n in range(3)]
    assert outlined(plots.heatmap(trials, [("acc", "max")], "x", "y", ("f", "max"))) == (2, 0)
    assert outlined(plots.heatmap(trials, [("acc", "max")], "x", "y", "seconds")) == (0, 0)
    with pytest.raises(ValueError, match=r"f is no objective .*\('f', 'min'\) or \('f', 'max'\)"):
        plots.heatmap(trials, [("acc", "max")], "x", "y", "f")


@pytest.mark.parametrize(
    ("x", "y", "metric", "message"),
    [
        ("nothing", "lr_scaling", None, r"'nothing' is no axis .*data\.global_batch_size, optimizer\.lr_scaling"),
        ("lr_scaling", "optimizer.lr_scaling", None, "both axes .*choose two of"),
        ("global_batch_size", "lr_scaling", "val/f1", "'val/f1' is no metric .*seconds.* val/accuracy"),
    ],
)
def test_wrong_names_are_told_with_the_right_ones(x: str, y: str, metric: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.heatmap(GRID, ACCURACY, x, y, metric)


def test_without_a_finished_trial_there_is_nothing_to_draw() -> None:
    trials = [trial(1, 1, 1, 0.5, "failed"), trial(2, 2, 2, math.nan)]
    with pytest.raises(ValueError, match=r"no finished trial has val/accuracy, .*2 trials: 1 finished, 1 failed"):
        heatmap(trials)
    with pytest.raises(ValueError, match="no finished trial has both val/accuracy and seconds"):
        plots.pareto(trials, BOTH)
    with pytest.raises(ValueError, match=r"is no axis of the sweep .*none yet"):
        heatmap([])
    with pytest.raises(ValueError, match="no finished trial has both"):
        plots.pareto([], BOTH)


FRONT = [
    trial(1, 64, "a", 0.9, seconds=9.0),
    trial(2, 64, "b", 0.8, seconds=4.0),
    trial(3, 64, "c", 0.7, seconds=5.0),
    trial(4, 64, "d", 0.6, seconds=1.0),
    trial(5, 64, "e", 0.99, "pruned", seconds=0.1),
]


def test_the_front_is_joined_by_steps_and_named() -> None:
    axes = plots.pareto(FRONT, BOTH).axes[0]
    [line] = axes.lines
    assert list(zip(*line.get_data(), strict=True)) == [(0.6, 1.0), (0.8, 4.0), (0.9, 9.0)]
    assert line.get_drawstyle() == "steps-pre"
    assert len(axes.collections[0].get_offsets()) == 4
    assert axes.get_xlabel() == "val/accuracy (higher is better →)"
    assert axes.get_ylabel() == "seconds (← lower is better)"
    texts = [text.get_text() for text in axes.texts]
    assert texts[:3] == ["1", "2", "4"]  # as in the ranking, in which c is the third
    assert texts[3].splitlines() == [
        f"{n}  global_batch_size=64, lr_scaling={name}" for n, name in ((1, "a"), (2, "b"), (4, "d"))
    ]


def test_steps_follow_what_can_be_reached() -> None:
    [line] = plots.pareto(FRONT, BOTH, x="seconds").axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == [1.0, 4.0, 9.0]


def test_settings_with_fewer_seeds_are_drawn_apart() -> None:
    trials = [trial(n, 64, "a", 0.5, seed=n) for n in range(2)] + [trial(9, 64, "lucky", 0.9, seed=0)]
    picture = plots.pareto(trials, BOTH)
    assert [len(points.get_offsets()) for points in picture.axes[0].collections] == [1, 1]
    assert "fewer seeds finished: not compared" in [text.get_text() for text in picture.legends[0].get_texts()]


def test_a_front_needs_two_metrics() -> None:
    for chosen in ((None, None), ("seconds", "seconds"), ("val/accuracy", None)):
        with pytest.raises(ValueError, match=r"two different metrics .*x='seconds'"):
            plots.pareto(FRONT, ACCURACY, *chosen)
    assert plots.pareto(FRONT, ACCURACY, x="seconds").axes[0].get_ylabel() == "val/accuracy (higher is better →)"
    with pytest.raises(ValueError, match="'val/f1' is no metric"):
        plots.pareto(FRONT, BOTH, x="val/f1")


def test_a_notebook_shows_the_picture() -> None:
    for picture in (heatmap(GRID), plots.pareto(FRONT, BOTH)):
        method = getattr(type(picture), "_repr_png_", None)
        assert method is not None
        with Image.open(BytesIO(method(picture))) as image:
            assert image.format == "PNG"
            assert len(set(image.convert("RGB").resize((64, 64)).getdata())) > 20


def test_text_is_never_a_formula() -> None:
    trials = [trial(1, "$x^$", "a$", 0.5, **{"model.$": "$\\frac$"}), trial(2, "b", "c", 0.6, **{"model.$": "d"})]
    for picture in (heatmap(trials), plots.pareto(trials, BOTH)):
        assert picture._repr_png_().startswith(b"\x89PNG")


def test_many_values_still_make_a_picture() -> None:
    trials = [trial(n, 0.001 * n, n % 4, 0.001 * n) for n in range(300)]
    picture = heatmap(trials)
    assert len(picture.axes[0].get_xticks()) == 25
    assert not picture.axes[0].texts
    assert picture._repr_png_().startswith(b"\x89PNG")
