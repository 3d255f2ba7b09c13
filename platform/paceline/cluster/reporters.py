"""The engine's reporters: direct calls to a coordinator in this process, or messages to the coordinator's actor."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from paceline._compat.ray import preemption_info
from paceline.cluster.final_report import FinalReport
from paceline.cluster.metric_buffer import MOST_READINGS, MetricBuffer
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.tracking.metric_points import MetricReading

MIN_ANSWER_SECONDS = 1.0
"""Minimum seconds that the coordinator has to answer whether a checkpoint may be put in place."""
CLOSE_SECONDS = 10.0
"""Seconds that the end of training waits for its metrics to be safe. The rest is sent with the final report."""
LOOK_SECONDS = 0.1
"""Seconds between two requests to the coordinator that ask whether the run's store has its record."""
_FULL = f"metrics are dropped from now on: {MOST_READINGS} readings wait for what records them, which takes none"
LATE_SECONDS = 120.0
"""Seconds after its announced end for which a machine is still expected to be taken away."""


class _Outgoing:
    """The common part of both reporters: metrics are sent through a buffer."""

    def __init__(self, deliver: Callable[[Sequence[MetricReading]], bool]) -> None:
        self._buffer = MetricBuffer(deliver, lambda: self.event("warning", code="readings-dropped", message=_FULL))

    def event(self, kind: str, **details: Any) -> None:
        raise NotImplementedError

    def unrecorded(self) -> list[Any]:
        return [reading.to_json() for reading in self._buffer.unsafe()]

    def record_again(self, metrics: list[Any]) -> None:
        self._buffer.put_back([MetricReading.from_json(points) for points in metrics])

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """End the reports of a finished training: wait for its last metrics to be safe, and end the thread that
        delivers them."""
        with suppress(Exception):
            self._buffer.flush(timeout_seconds)
        self._buffer.close()

    def unsafe_from(self) -> int | None:
        """Return the first optimizer step with a reading that is not safe; None if all are safe."""
        return next((reading.step for reading in self._buffer.unsafe()), None)

    def final_report(self, ending: dict[str, Any]) -> dict[str, Any]:
        """Close, and return the end of training for `RunCoordinator.finish`, with the readings that are still not
        safe."""
        self.close()
        return FinalReport(ending, self._buffer.unsafe(), self._buffer.lost).message()


def _until_stored(secure: Callable[[int | None], tuple[int, bool]], timeout_seconds: float) -> bool:
    """Ask a coordinator until its record is in the run's store, see `RunCoordinator.secure`; return False after the
    timeout."""
    deadline = time.monotonic() + timeout_seconds
    end, is_there = secure(None)
    while not is_there and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        end, is_there = secure(end)
    return is_there


class InProcessReporter(_Outgoing):
    """Reporter for training in the driver's process. `on_news` is called after each report, to redraw the display."""

    def __init__(self, coordinator: RunCoordinator, on_news: Any) -> None:
        super().__init__(coordinator.record)
        self._coordinator = coordinator
        self._on_news = on_news

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._coordinator.note(step, values)
        self._buffer.put(step, values)
        self._on_news()

    def progress(self, step: int, samples_per_second: float) -> None:
        self._coordinator.progress(step, samples_per_second)
        self._on_news()

    def event(self, kind: str, **details: Any) -> None:
        self._coordinator.event(kind, details)
        self._on_news()

    def recorded(self, timeout_seconds: float) -> bool:
        return self._buffer.flush(timeout_seconds)

    def stored(self, timeout_seconds: float) -> bool:
        return _until_stored(self._coordinator.secure, timeout_seconds)

    def stop_requested(self) -> bool:
        return self._coordinator.stop_requested

    def is_leaving(self) -> bool:
        return False  # it would get a signal

    def rung(self, step: int, values: Mapping[str, float]) -> bool:
        return True


class LaunchOver(RuntimeError):
    """The command that started this worker group is gone, and another one may be working on the run by now."""


class ActorReporter(_Outgoing):
    """Reporter for rank 0 of a Ray worker group. It sends messages without waiting, except before a checkpoint commits.

    `recorded` is called in the checkpoint's thread, `event` in both, the rest in the training thread.

    Args:
        coordinator: the actor; every message to it begins with `about`.
        about: trial and attempt, if the coordinator is that of a sweep. Only such a coordinator is asked at rungs.
    """

    def __init__(self, coordinator: Any, about: tuple[Any, ...] = ()) -> None:
        super().__init__(self._deliver)
        self._coordinator = coordinator
        self._about = about
        self._progress: Any = None
        self._stop = False
        self._notice: Any = None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._buffer.put(step, values)

    def progress(self, step: int, samples_per_second: float) -> None:
        self._read_answer()
        if self._progress is None:
            answer = self._coordinator.progress.remote(*self._about, step, samples_per_second)
            self._progress = answer

    def event(self, kind: str, **details: Any) -> None:
        self._coordinator.event.remote(*self._about, kind, details)

    def recorded(self, timeout_seconds: float) -> bool:
        """See `Reporter.recorded`.

        Raises:
            LaunchOver: the checkpoint must not be put in place.
        """
        import ray

        deadline = time.monotonic() + timeout_seconds
        try:
            all_safe = self._buffer.flush(timeout_seconds)
            left_seconds = max(deadline - time.monotonic(), MIN_ANSWER_SECONDS)
            may_commit = ray.get(self._coordinator.may_commit.remote(*self._about), timeout=left_seconds)
        except (
            ray.exceptions.ActorDiedError
        ):  # a coordinator that only crashed is started again: this one was dismissed
            may_commit = False
        except ray.exceptions.RayError:
            return False
        if not may_commit:
            raise LaunchOver("the launch that this worker group belongs to is over; its state is not saved any more")
        return all_safe

    def stored(self, timeout_seconds: float) -> bool:
        import ray

        def ask(end: int | None) -> tuple[int, bool]:
            answer: tuple[int, bool] = ray.get(
                self._coordinator.secure.remote(*self._about, end), timeout=timeout_seconds
            )
            return answer

        try:
            return _until_stored(ask, timeout_seconds)
        except ray.exceptions.RayError:
            return False

    def _deliver(self, readings: Sequence[MetricReading]) -> bool:
        import ray

        return bool(ray.get(self._coordinator.metrics.remote(*self._about, list(readings))))

    def stop_requested(self) -> bool:
        self._read_answer()
        return self._stop

    def is_leaving(self) -> bool:
        info = preemption_info()  # of Ray Train; its public call is a barrier over all workers
        if info is not None and info != self._notice:
            self._notice = info
            self.event("preemption")
            self.event("warning", code="preemption", message=notice_text(info))
        return info is not None and is_near(info)

    def rung(self, step: int, values: Mapping[str, float]) -> bool | None:
        import ray

        if not self._about:
            return True
        try:
            answer: bool | None = ray.get(self._coordinator.rung.remote(*self._about, dict(values)))
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
                return  # the coordinator is being restarted: the next message finds it


def is_near(info: Any) -> bool:
    """Return True if a machine may still be taken away as announced. One that is still there long after its time is
    expected to stay."""
    return info.deadline_ms is None or time.time() < info.deadline_ms / 1000 + LATE_SECONDS


def notice_text(info: Any) -> str:
    """Return the text of a preemption notice, for the watcher."""
    ranks = ", ".join(str(rank) for rank in info.preempted_ranks)
    left = None if info.deadline_ms is None else info.deadline_ms / 1000 - time.time()
    when = "" if left is None else f" in {max(0.0, left):.0f} s"
    return f"the machine of rank {ranks} is taken away{when}: its state is saved, and training resumes elsewhere"
