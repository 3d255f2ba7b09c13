"""Metrics buffered on rank 0 until the coordinator has made them durable; training never waits for it.

the training thread:     put
the checkpoint's thread: flush, and `unsafe` when that was in vain
a thread of its own:     deliver -> the coordinator -> the journal

A checkpoint waits for its metrics, but not for longer than `RECORDED_SECONDS`: it may be the last one that a worker can
save, after SIGTERM or a spot notice. The coordinator may be away for longer, started again on a busy node or without
room on its disk for the journal. Then the checkpoint keeps what is unsafe (`engine.unrecorded`): a resumed run computes
only the steps after its checkpoint again, so that nothing else has the points before it if the worker dies, too.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from paceline.tracking.metric_points import MetricReading

GATHER_SECONDS = 0.25
"""Seconds for which readings are gathered before they are delivered together, unless a caller waits for them."""
RETRY_SECONDS = 1.0
"""Seconds before a failed delivery is tried again."""
MOST_READINGS = 20_000
"""Number of readings kept while the coordinator takes none, some tens of MiB; later ones are dropped, and counted."""
READINGS_PER_DELIVERY = 1000


class MetricBuffer:
    """Keeps readings, in the order in which they were taken, until the coordinator has said that they are safe.

    Args:
        deliver: gives readings to the coordinator; returns True if they are safe. May take long. An exception counts as
            False, and is raised by `flush`.
        on_full: is called, in the thread that adds a reading, when one is dropped for the first time.
    """

    def __init__(
        self, deliver: Callable[[Sequence[MetricReading]], bool], on_full: Callable[[], object] = lambda: None
    ) -> None:
        self._deliver = deliver
        self._on_full = on_full
        self.lost = 0
        """Number of readings that were dropped."""
        self._lost_reported = 0
        self._new: deque[MetricReading] = (
            deque()
        )  # training appends to it without a lock, which it might have to wait for
        self._kept: list[MetricReading] = []
        self._changed = threading.Condition()
        self._is_hurried = self._is_closed = False
        self._safe = self._failed = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-metric_buffer", daemon=True)

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Take a step's values, with the current time."""
        plain = {key: float(value) for key, value in values.items()}
        self._add(MetricReading(step, time.time_ns() // 1_000_000, plain))

    def put_back(self, readings: Sequence[MetricReading]) -> None:
        """Take readings that an earlier buffer could not deliver."""
        for reading in readings:
            self._add(reading)

    def flush(self, timeout_seconds: float) -> bool:
        """Deliver everything now, wait for it, and return True if all is safe. Return False as soon as an attempt has
        failed, and when a reading was dropped since the last call.

        Raises:
            Exception: the one that the last attempt has raised.
        """
        lost, self._lost_reported = self.lost - self._lost_reported, self.lost
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._collect()
            goal, failed = self._safe + len(self._kept), self._failed
            self._is_hurried = True
            self._changed.notify_all()
            while self._safe < goal and self._failed == failed and self._thread.is_alive():
                if not self._changed.wait(deadline - time.monotonic()):
                    return False
            if self._failed > failed and self._error is not None:
                raise self._error
            return self._safe >= goal and not lost

    def unsafe(self) -> list[MetricReading]:
        """Return the readings that the coordinator has not confirmed as safe."""
        with self._changed:
            self._collect()
            return [reading for reading in self._kept if reading.values]

    def close(self) -> None:
        """End the thread after its current delivery. Readings that are left are kept, see `unsafe`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _add(self, reading: MetricReading) -> None:
        if len(self._kept) + len(self._new) >= MOST_READINGS:
            self.lost += 1
            if self.lost == 1:
                self._on_full()
            return
        self._new.append(reading)
        if self._thread.ident is None:
            self._thread.start()

    def _collect(self) -> None:
        while self._new:
            self._kept.append(self._new.popleft())

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            safe, error = False, None
            try:
                safe = self._deliver(batch)
            except Exception as trouble:
                error = trouble
            with self._changed:
                self._error = error
                if safe:
                    del self._kept[: len(batch)]
                    self._safe += len(batch)
                else:
                    self._failed += 1
                    self._is_hurried = False
                self._changed.notify_all()
                if not safe:
                    self._changed.wait_for(lambda: self._is_hurried or self._is_closed, RETRY_SECONDS)

    def _next(self) -> list[MetricReading] | None:
        """Return the next readings to deliver, once there are some; None after `close`."""
        with self._changed:
            while not self._is_closed:
                self._changed.wait_for(lambda: self._is_hurried or self._is_closed, GATHER_SECONDS)
                self._collect()
                batch = self._kept[:READINGS_PER_DELIVERY]
                self._is_hurried = self._is_hurried and len(batch) < len(self._kept)
                if batch and not self._is_closed:
                    return batch
        return None
