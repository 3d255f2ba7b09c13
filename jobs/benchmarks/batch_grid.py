"""A grid of batch sizes and learning-rate rules, each cell trained for the whole length with several seeds."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from harness import Benchmark

from paceline.batch_scaling.critical_batch import best_size, candidate_sizes, log_samples
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.segment import is_reached, train_segment
from paceline.bench.throughput import throughput
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext

RULES = ("none", "sqrt", "linear")
WINDOWS, WINDOW_SECONDS = 5, 0.3
"""Windows in which the time of a sample is measured."""


@dataclass(frozen=True)
class Cell:
    """A batch size of the grid with a rule."""

    size: int
    rule: str
    samples: tuple[int | None, ...]
    """To the target, for each seed."""
    sample_seconds: float

    @property
    def median(self) -> float | None:
        """Of the samples; None where the target was not reached with most of the seeds."""
        found = statistics.median(each if each is not None else float("inf") for each in self.samples)
        return found if found < float("inf") else None


def cell_overrides(plan: StudyPlan, size: int, rule: str) -> dict[str, Any]:
    """Return what a cell of the grid changes in the config."""
    own = {"optimizer.lr": plan.own_lr, "optimizer.base_batch_size": plan.own_batch_size}
    return {"data.global_batch_size": size, "optimizer.lr_scaling": rule, **own}


@dataclass(frozen=True)
class Training:
    """A training of the whole length."""

    reached: int | None
    """Samples to the target; None where it was not reached."""
    samples: int
    quality: float
    """Metric of the target at the end."""
    evaluations: Sequence[tuple[int, float]]
    """Samples and metric of the target at each evaluation."""


def trained(plan: StudyPlan, changes: Mapping[str, Any], seed: int) -> Training:
    """Train for the whole length."""
    target = plan.target
    assert target is not None
    changed = plan.config.with_overrides({**changes, "scale": None})
    every = max(1, round(plan.evaluation_steps * plan.own_batch_size / stages_of(changed)[-1][1]))
    config = changed.with_overrides(
        {
            "seed": seed,
            "scale": None,
            "trainer.evaluate_every_n_steps": every,
            "trainer.evaluate_every_n_epochs": 0,
            "callbacks": [*plan.config.callbacks, {"path": "paceline.batch_scaling.segment:Segment"}],
        }
    )
    values = train_segment([config], {}, DistContext.current())
    name = target.name
    evaluations = [(samples, round(metrics[name], 5)) for samples, metrics in values["evaluations"] if name in metrics]
    reached = (samples for samples, value in evaluations if is_reached(value, target.value, target.mode))
    quality = evaluations[-1][1] if evaluations else float("nan")
    return Training(next(reached, None), values["samples"], quality, evaluations)


def stages_of(config: ExperimentConfig) -> list[tuple[int, int]]:
    """Return the samples after which each batch size begins, and the size."""
    if config.data.batch_size_schedule:
        return [(each.samples, each.global_batch_size) for each in config.data.batch_size_schedule]
    assert isinstance(config.data.global_batch_size, int)
    return [(0, config.data.global_batch_size)]


def measured_grid(plan: StudyPlan, sizes: Sequence[int], seeds: int, benchmark: Benchmark) -> tuple[list[Cell], int]:
    """Train every cell; return all, and the samples that they took."""
    cells, spent = [], 0
    runs: list[Training] = []
    for size in sizes:
        config = plan.config.with_overrides({"data.global_batch_size": size, "scale": None})
        options = {"windows": WINDOWS, "window_seconds": WINDOW_SECONDS}
        (seconds,) = throughput([config], options, DistContext.current())["seconds_per_sample"]
        for rule in RULES:
            changes = cell_overrides(plan, size, rule)
            if size != plan.own_batch_size or rule == RULES[0]:  # the config's own batch is the same with each rule
                runs = [trained(plan, changes, plan.config.seed + number) for number in range(seeds)]
            spent += sum(run.samples for run in runs)
            cells.append(Cell(size, rule, tuple(run.reached for run in runs), statistics.median(seconds)))
            benchmark.say(f"batch {size}, {rule}: {cells[-1].samples} samples to the target")
    return cells, spent


def recorded_grid(plan: StudyPlan, results: Path) -> tuple[list[Cell], int]:
    """Read every cell from a record; return all, and the samples that they took."""
    raw = json.loads(results.read_text())["grid"]["raw"]["cells"]
    cells = [Cell(each["size"], each["rule"], tuple(each["samples"]), each["sample_seconds"]) for each in raw]
    return cells, sum(len(cell.samples) for cell in cells) * plan.samples


def best_of(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cell with the best rule for each batch size."""
    sizes = sorted({cell.size for cell in cells})
    return [
        min((cell for cell in cells if cell.size == size), key=lambda cell: cell.median or float("inf"))
        for size in sizes
    ]


def grid_critical_batch(
    samples: Mapping[int, float], own_batch_size: int, at_least: Mapping[int, float] = MappingProxyType({})
) -> float:
    """Return the critical batch size that fits the samples to the target best; `inf` for none.

    Args:
        samples: over those of the config's own batch, by batch size.
        at_least: lower limits of these, for batch sizes that have not reached it.
    """
    candidates = candidate_sizes(own_batch_size)
    errors = np.zeros_like(candidates)
    for size, each in samples.items():  # no batch takes fewer samples than a smaller one
        errors += (log_samples(candidates, size / own_batch_size, own_batch_size) - log(max(each, 1.0))) ** 2
    for size, least in at_least.items():
        expected = log_samples(candidates, size / own_batch_size, own_batch_size)
        errors += np.minimum(expected - log(max(least, 1.0)), 0.0) ** 2
    return best_size(candidates, errors)
