"""The engine's reporters: straight to a desk in this process, or by messages to the desk's actor."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from paceline.cluster.desk import Desk

MAX_UNACKNOWLEDGED = 1000
"""Answers that a checkpoint waits for at most; older ones have long come."""


class DeskReporter:
    """For training in the driver's process. `on_news` is called after each report, to redraw the display."""

    def __init__(self, desk: Desk, on_news: Any) -> None:
        self._desk = desk
        self._on_news = on_news
        self._all_recorded = True

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._all_recorded &= self._desk.metrics(step, values)
        self._on_news()

    def progress(self, step: int, samples_per_second: float) -> None:
        self._desk.progress(step, samples_per_second)
        self._on_news()

    def event(self, kind: str, **details: Any) -> None:
        self._desk.event(kind, details)
        self._on_news()

    def recorded(self, timeout_seconds: float) -> bool:
        all_recorded, self._all_recorded = self._all_recorded, True
        return all_recorded

    def stop_requested(self) -> bool:
        return self._desk.stop_requested


class ActorReporter:
    """For rank 0 of a Ray worker group: messages that nobody waits for, but a checkpoint before it commits."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk
        self._unacknowledged: deque[Any] = deque()
        self._progress: Any = None
        self._stop = False

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        plain = {key: float(value) for key, value in values.items()}
        self._unacknowledged.append(self._desk.metrics.remote(step, plain))
        if len(self._unacknowledged) > MAX_UNACKNOWLEDGED:
            self._unacknowledged.popleft()

    def progress(self, step: int, samples_per_second: float) -> None:
        self._read_answer()
        if self._progress is None:
            self._progress = self._desk.progress.remote(step, samples_per_second)

    def event(self, kind: str, **details: Any) -> None:
        self._desk.event.remote(kind, details)

    def recorded(self, timeout_seconds: float) -> bool:
        import ray

        pending = list(self._unacknowledged)
        try:
            safe = all(ray.get(pending, timeout=timeout_seconds))
        except ray.exceptions.RayError:
            return False
        for _ in pending:
            self._unacknowledged.popleft()
        return safe

    def stop_requested(self) -> bool:
        self._read_answer()
        return self._stop

    def _read_answer(self) -> None:
        import ray

        if self._progress is None:
            return
        done, _ = ray.wait([self._progress], timeout=0)
        if done:
            self._progress = None
            try:
                self._stop = self._stop or ray.get(done[0])
            except ray.exceptions.RayError:
                return  # the desk is being restarted: the next message finds it
