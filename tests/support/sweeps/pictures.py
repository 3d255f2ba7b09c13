"""A small sweep with repeated seeds, whose pictures are drawn."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import Trial
from paceline.tracking.metric_points import MetricPoint
from support.sweeps.configs import sweep_config

ACCURACY: list[Objective] = [("val/accuracy", "max")]
BATCH, RULE, LR = "data.global_batch_size", "optimizer.lr_scaling", "optimizer.lr"


GRID = sweep_config({BATCH: [64, 256], RULE: ["none", "sqrt", "linear"]}, metric="val/accuracy", seeds=2)


def trial(
    number: int, params: Mapping[str, Any], accuracy: float, state: TrialState = "finished", **more: Any
) -> Trial:
    """A trial that has ended."""
    given = {"steps": 100, "samples": 6400, "samples_per_second": 100.0 + number, "seconds": 5.0, "attempts": 1}
    return Trial(f"{number:04}", dict(params), state, metrics={"val/accuracy": accuracy}, **{**given, **more})


def points(key: str, values: Sequence[float], every: int = 10) -> list[MetricPoint]:
    """Logged values, `every` so many steps."""
    return [MetricPoint(key, value, every * place, place) for place, value in enumerate(values, 1)]


def grid_trials() -> tuple[list[Trial], dict[str, list[MetricPoint]]]:
    """The trials of `GRID` and their histories; larger batches see more samples a step."""
    trials, histories = [], {}
    for number in range(12):
        batch, rule, seed = [64, 256][number // 6], ["none", "sqrt", "linear"][number // 2 % 3], number % 2
        best = 0.9 - 0.1 * (batch == 256) + 0.02 * (number // 2 % 3) + 0.01 * seed
        params = {BATCH: batch, RULE: rule, "seed": seed}
        trials.append(trial(number, params, best, steps=6400 // batch))
        losses = points("train/loss", [2.0, 1.0 + 0.1 * seed, 0.5], every=6400 // batch // 3)
        histories[f"{number:04}"] = [*losses, *points("val/accuracy", [0.5, best], every=3200 // batch)]
    return trials, histories
