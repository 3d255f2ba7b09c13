"""The best kept checkpoint of a run by `checkpoint.monitor`, as its result names it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from paceline.config.experiment import ExperimentConfig
from paceline.engine.manifest import numbered
from paceline.storage.address import is_address, parse


@dataclass(frozen=True)
class BestCheckpoint:
    """The kept checkpoint with the best value of the monitored metric at its step."""

    step: int
    metric: str
    value: float
    checkpoint: str
    """Its folder, or its address in an object store."""


def best_checkpoint(
    config: ExperimentConfig, points: Iterable[tuple[str, float, int]], folder: Path, newest: str
) -> BestCheckpoint | None:
    """The best kept checkpoint; None without `checkpoint.monitor`, or if none was saved at an evaluation.

    Args:
        points: key, value and step of everything that was logged.
        folder: that of the run's checkpoints on this machine.
        newest: place of the newest checkpoint.
    """
    if config.checkpoint.objective is None or not newest:
        return None
    metric, mode = config.checkpoint.objective
    steps = {step for step, _ in numbered(folder)}
    # the newest value of a step that was trained twice is that of its checkpoint
    values = {step: value for key, value, step in points if key == metric and step in steps and isfinite(value)}
    if not values:
        return None
    sign = 1.0 if mode == "min" else -1.0
    step = min(values, key=lambda each: (sign * values[each], each))
    return BestCheckpoint(step, metric, values[step], checkpoint_beside(newest, step))


def checkpoint_beside(place: str, step: int) -> str:
    """Place of another checkpoint of the same run."""
    name = f"step-{step}"
    return str(parse(place, "checkpoint").parent / name) if is_address(place) else str(Path(place).parent / name)
