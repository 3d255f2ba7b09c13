"""Delay between taking a metric and its arrival in MLflow."""

import time
from collections.abc import Sequence

from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint


class Lag:
    """Looks at the points that MLflow has stored, until it is asked what they come to."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._step = -1

    def stored(self, points: Sequence[MetricPoint], is_first_time: bool = True) -> list[int]:
        """Take in what has just been stored; returns the steps of those among it that themselves tell of a lag.

        These have waited too, but nobody wants to know: each would have the next one follow it.

        Args:
            is_first_time: the points had not been stored elsewhere before. If they had, they are not late.
        """
        told = [point.step for point in points if point.key == metrics.LAG_SECONDS]
        others = [point for point in points if point.key != metrics.LAG_SECONDS]
        if others and is_first_time:
            oldest = min(point.timestamp_ms for point in others)
            self._seconds = max(self._seconds, time.time() - oldest / 1000)
            self._step = max(self._step, *(point.step for point in others))
        return told

    def take(self) -> MetricPoint | None:
        """The longest wait since the last call, in seconds, at the newest step; None when nothing was stored."""
        if self._step < 0:
            return None
        now = time.time_ns() // 1_000_000
        point = MetricPoint(metrics.LAG_SECONDS, round(self._seconds, 3), self._step, now)
        self._seconds, self._step = 0.0, -1
        return point
