"""Stop once a metric no longer improves."""

from collections.abc import Mapping
from math import isnan
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback, Control, TrainContext
from paceline.callbacks.metric_monitor import MetricMonitor
from paceline.config.limits import Metric
from paceline.direction import default_mode


class EarlyStopping(MetricMonitor):
    """Finishes the run after `patience` evaluations in a row without an improvement of more than `min_delta`.

    Raises:
        UnusableCode: the evaluation does not report the metric.
    """

    def __init__(self, monitor: str, mode: str, patience: int, min_delta: float = 0.0) -> None:
        super().__init__(monitor, "early_stopping")
        self.best: float | None = None
        """The best value so far."""
        self.num_bad_evaluations = 0
        """Evaluations in a row without an improvement."""
        self._sign = 1.0 if mode == "max" else -1.0
        self._patience = patience
        self._min_delta = min_delta

    def on_train_start(self, ctx: TrainContext) -> None:
        """Start to count again in a run that was stopped, and is trained further on request."""
        if self.num_bad_evaluations >= self._patience:
            self.num_bad_evaluations = 0

    def on_evaluation_end(self, ctx: TrainContext, metrics: Mapping[str, float]) -> Control:
        """Count evaluations without an improvement."""
        value = self.monitored(metrics)
        if self._improves(value):
            self.best, self.num_bad_evaluations = value, 0
        else:
            self.num_bad_evaluations += 1
        if self.num_bad_evaluations < self._patience:
            return Control.CONTINUE
        self.stop_reason = self._reason()
        return Control.STOP

    def state_dict(self) -> dict[str, Any]:
        """Best value and evaluations since."""
        return {"best": self.best, "num_bad_evaluations": self.num_bad_evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.best, self.num_bad_evaluations = state["best"], state["num_bad_evaluations"]

    def _reason(self) -> str:
        count = self.num_bad_evaluations
        evaluations = f"{count} evaluation{'' if count == 1 else 's'}"
        if self.best is None:
            return f"{self.monitor} was NaN for {evaluations}"
        margin = f" by more than {self._min_delta:g}" if self._min_delta else ""
        return f"{self.monitor} not better than {self.best:.4g}{margin} for {evaluations}"

    def _improves(self, value: float) -> bool:
        return not isnan(value) and (self.best is None or self._sign * (value - self.best) > self._min_delta)


class EarlyStoppingConfig(CallbackConfig):
    """Finish the run once a metric of the evaluation has stopped improving.

    `--extend` trains a run that was finished so further: the best value stays, the patience starts again.
    """

    metric_fields: ClassVar[tuple[str, ...]] = ("monitor",)

    name: Literal["early_stopping"]
    """Selects this callback."""
    monitor: Metric
    """Metric of the evaluation, such as `val/loss`."""
    mode: Literal["min", "max"] | None = None
    """`min`: lower is better. `max`: higher is better. Default: `min` for a metric whose name contains `loss`, `error`
    or the like, else `max`."""
    patience: Annotated[int, Field(ge=1, le=10**6)] = 3
    """Evaluations in a row without an improvement after which the run finishes, 1 to 10^6."""
    min_delta: Annotated[float, Field(ge=0, le=1e20)] = 0.0
    """Smallest difference that counts as an improvement, 0 to 10^20, in the metric's unit."""

    def build(self) -> Callback:
        """The callback."""
        return EarlyStopping(self.monitor, self.mode or default_mode(self.monitor), self.patience, self.min_delta)
