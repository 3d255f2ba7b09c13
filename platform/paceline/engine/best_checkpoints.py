"""The best checkpoints by a metric of the evaluation: `checkpoint.monitor`."""

from collections.abc import Mapping
from math import isnan
from typing import Any

from paceline.callbacks.callback import Control, TrainContext
from paceline.callbacks.metric_monitor import MetricMonitor
from paceline.engine.checkpoint_files import CheckpointWriter


class BestCheckpoints(MetricMonitor):
    """Saves after each evaluation that is among the best, and keeps those checkpoints.

    Args:
        monitor: a metric of the evaluation.
        mode: `min` or `max`.
        keep: how many are kept, at least 1.
        writer: rank 0's; None elsewhere.
    """

    def __init__(self, monitor: str, mode: str, keep: int, writer: CheckpointWriter | None) -> None:
        super().__init__(monitor, "the section checkpoint")
        self.best: list[tuple[float, int]] = []
        """Value and step of the best evaluations, the best first; of equal ones the earlier first."""
        self._sign = 1.0 if mode == "min" else -1.0
        self._keep = keep
        self._writer = writer

    def on_evaluation_end(self, ctx: TrainContext, metrics: Mapping[str, float]) -> Control:
        """Ask for a checkpoint, if this evaluation is among the best."""
        value = self.monitored(metrics)
        if isnan(value):
            return Control.CONTINUE
        self.best = sorted([*self.best, (value, ctx.step)], key=lambda each: (self._sign * each[0], each[1]))
        self.best = self.best[: self._keep]
        self._protect()
        return Control.SAVE if (value, ctx.step) in self.best else Control.CONTINUE

    def state_dict(self) -> dict[str, Any]:
        """Metric, and value and step of the best evaluations, as plain JSON."""
        return {"metric": self.monitor, "best": [list(each) for each in self.best]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them, unless another metric is monitored now."""
        if state.get("metric", self.monitor) != self.monitor:
            return
        self.best = [(value, step) for value, step in state["best"]][: self._keep]
        self._protect()

    def _protect(self) -> None:
        if self._writer is not None:
            self._writer.protected = frozenset(step for _, step in self.best)
