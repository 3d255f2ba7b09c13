"""Finds monitored metrics that the evaluation cannot report, before the training starts."""

import re
from collections.abc import Iterator

from paceline.config.disagreement import Disagreement
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.hints import nearest
from paceline.errors import Problem

PREFIX = "val/"
WRITTEN_ALIKE = re.compile(r"val[_.:-]")
"""The beginning of names such as `val_loss`, which other libraries report."""
CHOOSE_METRICS = ("task", "metrics", "callbacks")
"""Sections that determine the reported metrics."""


def check_monitors(config: ExperimentSchema) -> Iterator[Disagreement]:
    """Yield a problem for each monitored or compared metric that the evaluation cannot report."""
    of_task = getattr(config.task, "evaluation_metrics", ())
    if not of_task:
        yield from _without_prefix(config)
        return
    names = [*of_task, *(metric.name for metric in config.metrics)]
    for key, monitor in [*monitors(config), *_compared_by(config, names)]:
        if not can_be_reported(monitor, names):
            reported = [PREFIX + name for name in names]
            near = nearest(PREFIX + monitor.removeprefix(PREFIX), reported)
            start = f"did you mean {near}? " if near else ""
            yield _no_such_metric(key, monitor, f"{start}the evaluation reports {', '.join(reported)}")


def _without_prefix(config: ExperimentSchema) -> Iterator[Disagreement]:
    """Yield a problem for each name that no evaluation reports: those of a custom task are known only when it runs."""
    written_alike = ((key, metric) for key, metric in _compared(config) if WRITTEN_ALIKE.match(metric))
    for key, monitor in [*monitors(config), *written_alike]:
        if not monitor.startswith(PREFIX):
            name = WRITTEN_ALIKE.sub("", monitor) or "loss"
            yield _no_such_metric(key, monitor, f"did you mean {PREFIX}{name}? the evaluation reports {PREFIX}NAME")


def _no_such_metric(key: str, name: str, hint: str) -> Disagreement:
    problem = Problem("no-such-metric", f"no metric of the evaluation is called {name!r}", key, hint=hint)
    return Disagreement(problem, (key, "task.name", "metrics"))


def monitors(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    """Yield key and name of the metrics that callbacks and checkpoints watch."""
    for index, callback in enumerate(config.callbacks):
        for field in callback.metric_fields:
            if (monitor := getattr(callback, field)) is not None:
                yield f"callbacks.{index}.{field}", monitor
    if config.checkpoint.monitor is not None:
        yield "checkpoint.monitor", config.checkpoint.monitor


def _compared_by(config: ExperimentSchema, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield those that only the evaluation can report."""
    # the others, such as train/loss and samples_per_second, come from training
    yield from ((key, metric) for key, metric in _compared(config) if metric.startswith(PREFIX) or metric in names)


def _compared(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    """Yield key and name of the metrics that a sweep, a tune-up and a scale study compare."""
    if not all(type(callback).__module__.startswith("paceline.callbacks.") for callback in config.callbacks):
        return  # a custom callback may log what it likes
    if config.sweep is not None and not any(axis.partition(".")[0] in CHOOSE_METRICS for axis in config.sweep.space):
        yield from (("sweep.metric", metric) for metric in config.sweep.metrics)
        yield from ((f"sweep.constraints.{metric}", metric) for metric in config.sweep.constraints or ())
    if config.tuneup is not None and config.tuneup.metric is not None:
        yield "tuneup.metric", config.tuneup.metric
    if config.scale is not None:
        yield from (("scale.target", metric) for metric in config.scale.target or ())


def can_be_reported(monitor: str, names: list[str]) -> bool:
    """Return True for `val/NAME`, `val/SET/NAME`, and `val/NAME/KEY` of a metric that computes a mapping."""
    parts = monitor.removeprefix(PREFIX).split("/")
    return monitor.startswith(PREFIX) and any(part in names for part in parts)
