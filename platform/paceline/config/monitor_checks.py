"""Finds monitored metrics that the evaluation cannot report, before the training starts."""

from collections.abc import Iterator

from paceline.config.disagreement import Disagreement
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.hints import nearest
from paceline.errors import Problem

PREFIX = "val/"
CHOOSE_METRICS = ("task", "metrics", "callbacks")
"""Sections that determine the reported metrics."""


def check_monitors(config: ExperimentSchema) -> Iterator[Disagreement]:
    """Yield a problem for each monitored or compared metric that the evaluation cannot report."""
    of_task = getattr(config.task, "evaluation_metrics", ())
    if not of_task:
        return  # a custom task: its metrics are known at the first evaluation
    names = [*of_task, *(metric.name for metric in config.metrics)]
    for key, monitor in [*_monitors(config), *_compared_by(config, names)]:
        if not _can_be_reported(monitor, names):
            reported = [PREFIX + name for name in names]
            near = nearest(PREFIX + monitor.removeprefix(PREFIX), reported)
            start = f"did you mean {near}? " if near else ""
            hint = f"{start}the evaluation reports {', '.join(reported)}"
            reason = f"no metric of the evaluation is called {monitor!r}"
            problem = Problem("no-such-metric", reason, key, hint=hint)
            yield Disagreement(problem, (key, "task.name", "metrics"))


def _monitors(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    for index, callback in enumerate(config.callbacks):
        for field in callback.metric_fields:
            if (monitor := getattr(callback, field)) is not None:
                yield f"callbacks.{index}.{field}", monitor
    if config.checkpoint.monitor is not None:
        yield "checkpoint.monitor", config.checkpoint.monitor


def _compared_by(config: ExperimentSchema, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield key and name of the metrics that a sweep and a tune-up compare, if only the evaluation can report them."""
    if not all(type(callback).__module__.startswith("paceline.callbacks.") for callback in config.callbacks):
        return  # a custom callback may log what it likes
    compared = []
    if config.sweep is not None and not any(axis.partition(".")[0] in CHOOSE_METRICS for axis in config.sweep.space):
        compared += [("sweep.metric", metric) for metric in config.sweep.metrics]
        compared += [(f"sweep.constraints.{metric}", metric) for metric in config.sweep.constraints or ()]
    if config.tuneup is not None and config.tuneup.metric is not None:
        compared.append(("tuneup.metric", config.tuneup.metric))
    # the others, such as train/loss and samples_per_second, come from training
    yield from ((key, metric) for key, metric in compared if metric.startswith(PREFIX) or metric in names)


def _can_be_reported(monitor: str, names: list[str]) -> bool:
    """Return True for `val/NAME`, `val/SET/NAME`, and `val/NAME/KEY` of a metric that computes a mapping."""
    parts = monitor.removeprefix(PREFIX).split("/")
    return monitor.startswith(PREFIX) and any(part in names for part in parts)
