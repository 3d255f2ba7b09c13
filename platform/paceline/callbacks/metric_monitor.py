"""Base class of callbacks that follow one metric of the evaluation."""

from collections.abc import Mapping

from paceline.callbacks.callback import Callback
from paceline.errors import UnusableCode

NO_METRICS = (
    "no metrics, because the validation set is empty or all its samples have weight 0. Return a validation set, or "
    "monitor nothing"
)


class MetricMonitor(Callback):
    """Follows the metric `monitor`.

    Args:
        owner: the part of the config that names the metric, for messages.
    """

    def __init__(self, monitor: str, owner: str) -> None:
        self.monitor = monitor
        self.owner = owner

    def monitored(self, metrics: Mapping[str, float]) -> float:
        """The value of the metric.

        Raises:
            UnusableCode: the evaluation does not report it.
        """
        if self.monitor not in metrics:
            raise UnusableCode(
                f"{self.owner} monitors {self.monitor!r}, which the evaluation does not report: it reports "
                f"{', '.join(sorted(metrics)) or NO_METRICS}",
                "no-such-metric",
                metric=self.monitor,
                reported=sorted(metrics),
            )
        return metrics[self.monitor]
