"""Monitored metrics that the evaluation cannot report, found before the training starts."""

from collections.abc import Iterator
from typing import Any

from paceline.config.disagreement import Disagreement
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.hints import nearest
from paceline.errors import Problem

PREFIX = "val/"


def check_monitors(config: ExperimentSchema) -> Iterator[Disagreement]:
    """Yield `checkpoint.monitor` and those of callbacks where no metric of the evaluation can have that name."""
    of_task = getattr(config.task, "evaluation_metrics", ())
    if not of_task:
        return  # a custom task: its metrics are known at the first evaluation
    names = [*of_task, *(metric.name for metric in config.metrics)]
    for key, monitor in _monitors(config):
        if not _can_be_reported(monitor, names):
            reported = [PREFIX + name for name in names]
            near = nearest(PREFIX + monitor.removeprefix(PREFIX), reported)
            start = f"did you mean {near}? " if near else ""
            hint = f"{start}the evaluation reports {', '.join(reported)}"
            reason = f"no metric of the evaluation is called {monitor!r}"
            problem = Problem("no-such-metric", reason, key, hint=hint)
            yield Disagreement(problem, (key, "task.name", "metrics"))


def _monitors(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    callbacks: list[Any] = list(config.callbacks)
    for index, callback in enumerate(callbacks):
        if callback.describe() == "early_stopping":
            yield f"callbacks.{index}.monitor", callback.monitor
    if config.checkpoint.monitor is not None:
        yield "checkpoint.monitor", config.checkpoint.monitor


def _can_be_reported(monitor: str, names: list[str]) -> bool:
    """True for `val/NAME` and `val/SET/NAME`, also with what a metric that computes a mapping adds: `val/NAME/KEY`."""
    parts = monitor.removeprefix(PREFIX).split("/")
    return monitor.startswith(PREFIX) and any(part in names for part in parts)
