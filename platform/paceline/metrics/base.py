"""Protocol of metric objects, and the function that builds one from its config."""

from typing import TYPE_CHECKING, Any, Protocol

from paceline.config.metric import MetricConfig
from paceline.errors import UnusableCode

if TYPE_CHECKING:
    import torch


class Metric(Protocol):
    """Interface of a metric object. torchmetrics' metrics implement it."""

    def update(self, predictions: "torch.Tensor", targets: "torch.Tensor") -> None:
        """Take in `TaskOutput.predictions` and `TaskOutput.targets` of a batch."""

    def compute(self) -> Any:
        """The value over all batches: a number, or a mapping of numbers."""

    def reset(self) -> None:
        """Forget all batches."""


def build_metric(config: MetricConfig) -> Metric:
    """Build a metric object, on the CPU.

    Raises:
        UnusableCode: it lacks a method.
    """
    metric = config.call()
    missing = [method for method in ("update", "compute", "reset") if not callable(getattr(metric, method, None))]
    if missing:
        message = f"metric {config.name!r} is a {type(metric).__name__}, which has no {' and no '.join(missing)}"
        raise UnusableCode(message, "not-a-metric", missing=missing)
    return metric  # type: ignore[no-any-return]
