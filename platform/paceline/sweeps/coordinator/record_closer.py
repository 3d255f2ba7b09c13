"""Closes the records of a sweep's trials, in threads that wait for MLflow.

Trials may end faster than MLflow takes their records, by hours in a sweep of thousands. A record that waits with its
recorder has an open journal and a thread, 100 KB in all, so only some of them do. Any other one is set aside: its end
is written to its journal, and it is sent from its folder once a thread is free.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from paceline.cluster.run_coordinator import Status
from paceline.engine.host_allocator import return_freed_memory
from paceline.errors import PacelineError, text_of
from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.write_queue import WriteQueue
from paceline.sweeps.trial import Trial
from paceline.tracking.mlflow_probe import silence_of
from paceline.tracking.run_record import RECORD_FILE, RunRecord, trial_state_tags
from paceline.tracking.run_recorder import SILENT_SECONDS, TRIAL_STATUS, RunRecorder, has_ended
from paceline.tracking.sync import sync

MOST_CLOSINGS = 64
"""Records that are sent at the same time, at most. While so many are not yet closed, any further one is set aside."""
CLOSINGS_PER_TRIM = 100
"""Closed records after which memory that they have freed is returned to the system: glibc keeps what lies between
blocks in use, some 10 MiB. Takes a few milliseconds."""

Closed = Callable[[dict[str, Any]], None]
"""Is given an `UploadReport` as a mapping."""


class RecordCloser:
    """Closes records in threads of its own.

    Args:
        uri: MLflow's address.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._tasks: set[asyncio.Task[None]] = set()
        self._folders: set[Path] = set()
        """Folders of the records that are not yet closed."""
        self._is_over = False
        self._threads = ThreadPoolExecutor(MOST_CLOSINGS, "close-trial")
        self._closings = count(1)

    def close(
        self,
        run: RunningTrial,
        folder: Path,
        status: Status,
        reason: str | None,
        timeout_seconds: float,
        when_closed: Closed,
    ) -> None:
        """Close the record of a trial that has run in this launch, after all that is still to be written there.

        Args:
            folder: holds the trial's record.
        """
        run.coordinator.rest()  # many may wait for a thread: they must not take turns of those that have one
        if len(self._tasks) < MOST_CLOSINGS:
            close = partial(run.coordinator.close, status, reason, timeout_seconds)
            self._begin(folder, self._close(close, when_closed, run.writes))
        else:
            set_aside = run.write(lambda coordinator: coordinator.set_aside(status, reason))
            self._begin(folder, self._close_from_folder(set_aside, folder, timeout_seconds, when_closed))

    def close_anew(self, folder: Path, trial: Trial, timeout_seconds: float, when_closed: Closed) -> None:
        """Close the record of a trial that an earlier launch has left open, or send what MLflow lacks of it.

        Args:
            folder: holds the trial's record. Without one, or while it is being closed, nothing is done.
        """
        if folder not in self._folders:
            close = partial(_close_anew, folder, self._uri, trial, timeout_seconds)
            self._begin(folder, self._close(close, when_closed))

    async def finish(self, timeout_seconds: float) -> None:
        """Wait for those that have begun; those that are not done by then are left for a later launch."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_seconds)

    def give_up(self) -> None:
        """Begin no more."""
        self._is_over = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, folder: Path, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._tasks.add(task)
        self._folders.add(folder)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._folders.discard(folder))

    async def _close(
        self, close: Callable[[], dict[str, Any]], when_closed: Closed, before: WriteQueue | None = None
    ) -> None:
        if before is not None:
            await before.settled()
        if self._is_over:  # a later launch sends it
            return
        when_closed(await asyncio.get_running_loop().run_in_executor(self._threads, self._report_of, close))

    async def _close_from_folder(
        self, set_aside: "asyncio.Future[bool]", folder: Path, timeout_seconds: float, when_closed: Closed
    ) -> None:
        """Send a record once its end is written down.

        Args:
            set_aside: its result is True if MLflow lacks the run.
        """
        try:
            is_new = await set_aside
        except Exception as error:
            when_closed(_unsent_for(error))
            return
        await self._close(partial(_send, folder, self._uri, timeout_seconds, is_new), when_closed)

    def _report_of(self, close: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        report = _report_of(close)
        if next(self._closings) % CLOSINGS_PER_TRIM == 0:
            return_freed_memory()
        return report


def _report_of(close: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Close a record; what goes wrong is in its report.

    An exception of any kind, SystemExit included, is the trouble of one trial: it would end the coordinator's event
    loop, or leave the trial open without a word.
    """
    try:
        return close()
    except BaseException as error:
        return _unsent_for(error)


def _unsent_for(error: BaseException) -> dict[str, Any]:
    kind = "" if isinstance(error, OSError | PacelineError) else f"{type(error).__name__}: "
    return _unsent(1, f"{kind}{text_of(error)}")


def _unsent(entries: int, error: str = "") -> dict[str, Any]:
    return {"run_id": None, "unsent": entries, "error": error}


def _send(folder: Path, uri: str, timeout_seconds: float, is_new: bool) -> dict[str, Any]:
    silence = silence_of(uri, SILENT_SECONDS) if is_new else None
    if silence is not None:  # thousands may wait, and each would take the whole time
        return _unsent(1, silence)
    return asdict(sync(folder, uri, timeout_seconds, is_new))


def _close_anew(folder: Path, uri: str, trial: Trial, timeout_seconds: float) -> dict[str, Any]:
    if not (folder / RECORD_FILE).exists():
        return _unsent(0)
    if has_ended(folder):  # when the trial ended stays as it is
        return asdict(sync(folder, uri, timeout_seconds))
    recorder = RunRecorder(folder, RunRecord.load(folder, uri))
    recorder.set_tags(trial_state_tags(trial.state))
    status = TRIAL_STATUS.get(trial.state, "KILLED")
    return asdict(recorder.close(status, trial.reason or None, timeout_seconds))
