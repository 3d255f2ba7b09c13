"""Closes the records of ended trials in the background, since MLflow may keep each of them waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.cluster.run_coordinator import Status
from paceline.errors import PacelineError, text_of
from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.write_queue import WriteQueue
from paceline.sweeps.trial import Trial
from paceline.tracking.run_record import RECORD_FILE, RunRecord, trial_state_tags
from paceline.tracking.run_recorder import TRIAL_STATUS, RunRecorder, has_ended, sync

MOST_CLOSINGS = 64
"""How many records wait for MLflow at the same time."""

Closed = Callable[[dict[str, Any]], None]
"""Is given a `UploadReport` as a mapping."""


class RecordCloser:
    """Closes records in threads of its own."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(MOST_CLOSINGS, "close-trial")

    def close(
        self, run: RunningTrial, status: Status, reason: str | None, timeout_seconds: float, when_closed: Closed
    ) -> None:
        """Close the record of a trial that has run in this launch, after all that is still to be written there."""
        self._begin(lambda: run.coordinator.close(status, reason, timeout_seconds), when_closed, run.writes)

    def close_anew(self, folder: Path, uri: str, trial: Trial, timeout_seconds: float, when_closed: Closed) -> None:
        """Close the record of a trial that an earlier launch did not live to close, or send what MLflow lacks of it.

        Args:
            folder: holds the trial's record. Without one there is nothing to do.
            uri: MLflow's address.
        """
        self._begin(lambda: _close_anew(folder, uri, trial, timeout_seconds), when_closed)

    async def finish(self, timeout_seconds: float) -> None:
        """Wait for those that have begun; those that are not done by then are left for a later launch."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_seconds)

    def give_up(self) -> None:
        """Begin no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(
        self, close: Callable[[], dict[str, Any]], when_closed: Closed, before: WriteQueue | None = None
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._close(close, when_closed, before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, close: Callable[[], dict[str, Any]], when_closed: Closed, before: WriteQueue | None) -> None:
        if before is not None:
            await before.settled()
        when_closed(await asyncio.get_running_loop().run_in_executor(self._threads, _report_of, close))


def _report_of(close: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Close a record; what goes wrong is in its report.

    An exception of any kind, SystemExit included, is the trouble of one trial: it would end the coordinator's event
    loop, or leave the trial open without a word.
    """
    try:
        return close()
    except BaseException as error:
        kind = "" if isinstance(error, OSError | PacelineError) else f"{type(error).__name__}: "
        return _unsent(1, f"{kind}{text_of(error)}")


def _unsent(entries: int, error: str = "") -> dict[str, Any]:
    return {"run_id": None, "unsent": entries, "error": error}


def _close_anew(folder: Path, uri: str, trial: Trial, timeout_seconds: float) -> dict[str, Any]:
    if not (folder / RECORD_FILE).exists():
        return _unsent(0)
    if has_ended(folder):  # when the trial ended stays as it is
        return asdict(sync(folder, uri, timeout_seconds))
    recorder = RunRecorder(folder, RunRecord.load(folder, uri))
    recorder.set_tags(trial_state_tags(trial.state))
    status = TRIAL_STATUS.get(trial.state, "KILLED")
    return asdict(recorder.close(status, trial.reason or None, timeout_seconds))
