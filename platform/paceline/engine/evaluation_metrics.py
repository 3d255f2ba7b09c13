"""Metrics of a whole evaluation over all ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from paceline.config.metric import MetricConfig
from paceline.engine.batches import map_tensors
from paceline.engine.dist_context import DistContext
from paceline.errors import UnusableCode
from paceline.metrics.base import Metric, build_metric
from paceline.tasks.base import TaskOutput


class EvaluationMetrics:
    """The metric objects of a config, fed with the predictions and targets of every batch.

    Metrics that synchronise by themselves (those of torchmetrics), or that have `synchronize`, hold what they need of
    this rank's batches. For all others, the predictions of all ranks are gathered and each rank computes over all of
    them.
    """

    def __init__(self, configs: Sequence[MetricConfig], ranks: DistContext) -> None:
        self._ranks = ranks
        self._metrics = {config.name: _on(build_metric(config), ranks.device) for config in configs}
        self._of_users = [config.name for config in configs if not config.is_shipped]
        for metric in self._metrics.values():
            metric.reset()  # a class may make its state there alone
        self._kept: list[tuple[Any, Any]] = []
        self._gathers = ranks.world_size > 1 and any(map(_is_plain, self._metrics.values()))

    def require_new(self, of_task: Mapping[str, float]) -> None:
        """Check that no metric of the user's would take the place of one that the task reports.

        Raises:
            UnusableCode: one has its name.
        """
        for name in self._of_users:
            if name in of_task:
                raise UnusableCode(
                    f"metrics: the task reports a metric named {name!r} itself. Give yours another name",
                    "metric-name-taken",
                    metric=name,
                )

    def add(self, output: TaskOutput) -> None:
        """Take in a batch.

        Raises:
            UnusableCode: the task gives no predictions.
        """
        if not self._metrics:
            return
        if output.predictions is None or output.targets is None:
            raise UnusableCode(
                f"metrics {', '.join(self._metrics)} need predictions, which the task does not give: set predictions "
                "and targets of its TaskOutput",
                "no-predictions",
            )
        predictions, targets = map_tensors((output.predictions, output.targets), torch.Tensor.detach)
        for metric in self._metrics.values():
            if not (self._gathers and _is_plain(metric)):
                metric.update(predictions, targets)
        if self._gathers:
            self._kept.append(map_tensors((predictions, targets), torch.Tensor.cpu))

    def compute(self) -> dict[str, float]:
        """Values over all ranks, by name; every rank must call it. Forgets all batches."""
        kept = [pair for part in self._ranks.gather_objects(self._kept) for pair in part] if self._gathers else []
        values: dict[str, float] = {}
        for name, metric in self._metrics.items():
            if self._gathers and _is_plain(metric):
                for predictions, targets in kept:
                    metric.update(*map_tensors((predictions, targets), self._to_device))
            elif hasattr(metric, "synchronize"):
                metric.synchronize(self._ranks.gather_objects)
            values |= _numbers(name, metric.compute())
            metric.reset()
        self._kept = []
        return values

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._ranks.device)


def _is_plain(metric: Metric) -> bool:
    """True for a metric that knows of one process alone."""
    return not (hasattr(metric, "synchronize") or hasattr(metric, "sync"))


def _on(metric: Metric, device: torch.device) -> Metric:
    move = getattr(metric, "to", None)
    return metric if move is None else move(device)


def _numbers(name: str, value: Any) -> dict[str, float]:
    """The reported numbers of a metric: one, or one for each key or place."""
    if isinstance(value, Mapping):
        return {
            key: number for inner, each in value.items() for key, number in _numbers(f"{name}/{inner}", each).items()
        }
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        return {f"{name}/{index}": float(each) for index, each in enumerate(value.flatten().tolist())}
    try:
        return {name: float(value)}
    except (TypeError, ValueError, RuntimeError, OverflowError):
        message = f"metric {name!r} computed a {type(value).__name__}: return a number, or a mapping of numbers"
        raise UnusableCode(message, "metric-not-a-number") from None
