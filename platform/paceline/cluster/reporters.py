"""The engine's reporters: straight to a desk in this process, or by messages to the desk's actor."""

from collections import deque
from collections.abc import Mapping
from threading import Lock
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

    def rung(self, step: int, values: Mapping[str, float]) -> bool:
        return True


class LaunchOver(RuntimeError):
    """The command that started this worker group is gone, and another one may be working on the run by now."""


class ActorReporter:
    """For rank 0 of a Ray worker group: messages that nobody waits for, but a checkpoint before it commits.

    `recorded` is called in the checkpoint's thread, `event` in both, the rest in the training thread.

    Args:
        desk: the actor; every message to it begins with `about`.
        about: trial and attempt, where the desk is that of a sweep. Only such a desk is asked at rungs.
    """

    def __init__(self, desk: Any, about: tuple[Any, ...] = ()) -> None:
        self._desk = desk
        self._about = about
        self._lock = Lock()  # for the messages below, which both threads use
        self._unacknowledged: deque[Any] = deque(maxlen=MAX_UNACKNOWLEDGED)
        self._progress: Any = None
        self._stop = False

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        plain = {key: float(value) for key, value in values.items()}
        with self._lock:
            self._unacknowledged.append(self._desk.metrics.remote(*self._about, step, plain))

    def progress(self, step: int, samples_per_second: float) -> None:
        self._read_answer()
        if self._progress is None:
            answer = self._desk.progress.remote(*self._about, step, samples_per_second)
            self._progress = answer

    def event(self, kind: str, **details: Any) -> None:
        self._desk.event.remote(*self._about, kind, details)

    def recorded(self, timeout_seconds: float) -> bool:
        """See `Reporter.recorded`.

        Raises:
            LaunchOver: the checkpoint must not be put in place.
        """
        import ray

        pending = self._take()
        try:
            *answers, may_commit = ray.get(
                [*pending, self._desk.may_commit.remote(*self._about)], timeout=timeout_seconds
            )
        except ray.exceptions.ActorDiedError:  # a desk that only crashed is started again: this one was dismissed
            may_commit = False
        except ray.exceptions.RayError:
            self._put_back(pending)
            return False
        if not may_commit:
            raise LaunchOver("the launch that this worker group belongs to is over; its state is not saved any more")
        return all(answers)

    def _take(self) -> list[Any]:
        with self._lock:
            pending = list(self._unacknowledged)
            self._unacknowledged.clear()
        return pending

    def _put_back(self, pending: list[Any]) -> None:
        """Wait for these next time, too; of too many, the oldest are let go."""
        with self._lock:
            newer = list(self._unacknowledged)
            self._unacknowledged.clear()
            self._unacknowledged.extend(pending + newer)

    def stop_requested(self) -> bool:
        self._read_answer()
        return self._stop

    def rung(self, step: int, values: Mapping[str, float]) -> bool | None:
        import ray

        if not self._about:
            return True
        try:
            answer: bool | None = ray.get(self._desk.rung.remote(*self._about, dict(values)))
        except ray.exceptions.ActorDiedError:
            return None  # the launch is over
        return answer

    def _read_answer(self) -> None:
        import ray

        if self._progress is None:
            return
        done, _ = ray.wait([self._progress], timeout=0)
        if done:
            self._progress = None
            try:
                self._stop = self._stop or ray.get(done[0])
            except ray.exceptions.ActorDiedError:
                self._stop = True  # the launch is over, and nobody waits for this group any more
            except ray.exceptions.RayError:
                return  # the desk is being restarted: the next message finds it
