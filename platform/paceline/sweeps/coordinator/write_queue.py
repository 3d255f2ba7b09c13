"""Writes to the disk in threads: the coordinator's event loop waits for no fsync."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

from paceline.sweeps.restart_state import LogEntry

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class WriteQueue:
    """Writes that are done one after another, in the order in which they were put in."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._is_running = False
        self._last: asyncio.Future[Any] | None = None

    def put(self, write: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Have something written soon; the future has its result or its error. Called on the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        future.add_done_callback(_log_error)  # those that nobody waits for must not be lost
        self._last = future
        with self._lock:
            self._waiting.append((write, future))
            is_idle, self._is_running = not self._is_running, True
        if is_idle:
            self._threads.submit(self._run, loop)
        return future

    async def settled(self) -> None:
        """Wait until all that was put in until now is written, or has failed."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                write, future = self._waiting.popleft()
            result: Any = None
            error: Exception | None = None
            try:
                result = write()
            except Exception as trouble:
                error = trouble
            except BaseException as trouble:  # it would end this thread, and with it all writes to come
                error = RuntimeError(f"{type(trouble).__name__}: {trouble}")
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future, result, error)


class GroupCommit:
    """A journal whose entries are made durable together: those that come during an fsync share the next one.

    Args:
        append: adds entries to the journal, durably, or raises OSError.
    """

    def __init__(self, append: Callable[[Sequence[LogEntry]], None], threads: Executor) -> None:
        self._append = append
        self._queue = WriteQueue(threads)
        self._lock = threading.Lock()
        self._entries: list[LogEntry] = []
        self._commit: asyncio.Future[None] | None = None
        """Future of the entries that are not yet written; None if there are none."""

    def put(self, *entries: LogEntry) -> "asyncio.Future[None]":
        """Have entries appended soon; the future is done once they are durable. Called on the event loop."""
        with self._lock:
            self._entries += entries
            if self._commit is None:
                self._commit = self._queue.put(self._write)
            return self._commit

    async def settled(self) -> None:
        """Wait until all entries until now are durable, or could not be written."""
        await self._queue.settled()

    def _write(self) -> None:
        with self._lock:
            self._commit, entries, self._entries = None, self._entries, []
        self._append(entries)


def _resolve(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _log_error(future: "asyncio.Future[Any]") -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, OSError):  # who put it in reports a full disk
        logger.error("a write of the coordinator failed", exc_info=error)
