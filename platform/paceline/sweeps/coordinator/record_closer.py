"""Closes the records of a sweep's trials: their end is written down here, and what MLflow lacks is sent by others."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from paceline.cluster.run_coordinator import Status
from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.write_queue import WriteQueue
from paceline.sweeps.trial import Trial
from paceline.tracking.run_record import RECORD_FILE, RunRecord, trial_state_tags
from paceline.tracking.run_recorder import TRIAL_STATUS, RunRecorder, has_ended
from paceline.tracking.upload_cursor import UploadReport
from paceline.tracking.upload_threads import unsent_for
from paceline.tracking.uploads import Uploads

MOST_READERS = 4
"""Records of earlier launches that are read at the same time, at most."""

Closed = Callable[[UploadReport], None]


class RecordCloser:
    """Closes records in the background.

    Args:
        uri: MLflow's address.
        uploads: sends the records.
    """

    def __init__(self, uri: str, uploads: Uploads) -> None:
        self._uri, self._uploads = uri, uploads
        self._threads = ThreadPoolExecutor(MOST_READERS, "left-open")
        """For records that earlier launches have left open: those of this launch must not wait for them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._folders: set[Path] = set()
        """Folders of the records that are not yet closed."""
        self._num_sent = 0
        """Records that MLflow has as a whole."""
        self._is_over = False

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
        ended = run.write(lambda coordinator: coordinator.hand_over(status, reason))
        self._begin(folder, self._close(folder, ended, timeout_seconds, when_closed))

    def close_anew(self, folder: Path, trial: Trial, timeout_seconds: float, when_closed: Closed) -> None:
        """Close the record of a trial that an earlier launch has left open, or send what MLflow lacks of it.

        Args:
            folder: holds the trial's record. Without one, or while it is being closed, nothing is done.
        """
        if folder not in self._folders:
            ended = WriteQueue(self._threads).put(partial(_end, folder, self._uri, trial))
            self._begin(folder, self._close(folder, ended, timeout_seconds, when_closed))

    @property
    def num_open(self) -> int:
        """Number of records that have begun to be closed, and are not."""
        return len(self._tasks)

    async def finish(self, patience_seconds: float) -> None:
        """Wait for those that have begun, until MLflow has taken none for so long; the others are left for a later
        launch."""
        sent = -1
        while self._tasks and sent < self._num_sent:
            sent = self._num_sent
            await asyncio.wait(list(self._tasks), timeout=patience_seconds)

    def give_up(self) -> None:
        """Begin no more, and send nothing more, the sweep's own record included."""
        self._is_over = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._uploads.stop()

    def _begin(self, folder: Path, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._tasks.add(task)
        self._folders.add(folder)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._folders.discard(folder))

    async def _close(
        self, folder: Path, ended: "asyncio.Future[Any]", timeout_seconds: float, when_closed: Closed
    ) -> None:
        """Send a record once its end is written down.

        Args:
            ended: its result is True if the run was never begun before this launch, and None if there is no record.
        """
        try:
            is_new = await ended
        except Exception as error:  # of any kind: it is the trouble of one trial
            self._uploads.abandon(folder)
            when_closed(unsent_for(error))
            return
        if is_new is None or self._is_over:  # a later launch sends it
            return
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[UploadReport] = loop.create_future()

        def take(report: UploadReport) -> None:
            if not sent.done():
                sent.set_result(report)

        def when_sent(report: UploadReport) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(take, report)

        self._uploads.finish(folder, self._uri, timeout_seconds, when_sent, is_new)
        report = await sent
        self._num_sent += not report.unsent and not report.error
        when_closed(report)


def _end(folder: Path, uri: str, trial: Trial) -> bool | None:
    """Write down the end of a trial whose record an earlier launch has left open.

    Returns:
        None if there is no record, else False.
    """
    if not (folder / RECORD_FILE).exists():
        return None
    if not has_ended(folder):  # when the trial ended stays as it is
        recorder = RunRecorder(folder, RunRecord.load(folder, uri))
        recorder.set_tags(trial_state_tags(trial.state))
        recorder.hand_over(TRIAL_STATUS.get(trial.state, "KILLED"), trial.reason or None)
    return False
