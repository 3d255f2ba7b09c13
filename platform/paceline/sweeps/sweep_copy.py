"""The copy of a sweep in its object store: its log, its own record, and those of its trials.

the log is read  ->  records of its trials  ->  the sweep's own record, best.yaml  ->  the log  ->  marks

In this order, a trial that has ended by the store's log has all of its record there. And what waits for a trial's
record (its checkpoints, MLflow) continues only once the store's log has the trial with the values that it has now:
whoever resumes the sweep gives it the same ones.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.durable import write_durably
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_log import StoredLog
from paceline.storage.stored_record import RecordCopy
from paceline.storage.working_copies import SWEEP_LOG, TRACKING, TRIALS, RunStore
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.trial import NOT_TRAINED

AT_ONCE = 8
"""Records that are copied side by side."""


@dataclass
class _TrialCopy:
    """The record of a trial that may still change."""

    record: RecordCopy
    params: Mapping[str, Any] = field(default_factory=dict)
    log_bytes: int = 0
    """Bytes of the log that have to be in the store before the trial's record counts."""
    is_complete: bool = False
    """True if MLflow has all of it, so that it changes no more."""


class SweepCopy:
    """Copies what has changed of a sweep. May be used by several threads.

    Args:
        run: the sweep's place.
        may_resend: whether records that MLflow has all of may change as well, as they do in `paceline sync`.
    """

    def __init__(self, run: RunStore, may_resend: bool = False) -> None:
        self._remote = RemoteFolder(run.address)
        self._folder = SweepFolder(run.folder)
        self._may_resend = may_resend
        self._log = StoredLog(self._remote / SWEEP_LOG, run.folder / SWEEP_LOG)
        self._followed_bytes = 0
        """Bytes of the log that have been read."""
        self._record = RecordCopy(self._remote, self._folder.tracking)
        self._trials: dict[str, _TrialCopy] = {}
        self._best = b""
        self._lock = threading.RLock()

    @property
    def journal_bytes(self) -> int:
        """Size of the journal of the sweep's own record."""
        return self._record.journal_bytes

    def is_wanted(self) -> bool:
        """Return True if somebody waits for a record to be in the store."""
        with self._lock:
            self._follow()
            return self._record.is_wanted() or bool(self._wanted())

    def is_behind(self) -> bool:
        """Return True if something has changed since it was last copied."""
        with self._lock:
            self._follow()
            return (
                self._followed_bytes > self._log.stored_bytes
                or self._record.is_behind()
                or self._best_here() != self._best
                or any(trial.record.is_behind() for trial in self._trials.values())
            )

    def push_wanted(self) -> None:
        """Copy the records that somebody waits for.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the sweep's folder cannot be read or written to.
        """
        with self._lock:
            self._follow()
            wanted = self._wanted()
            if self._record.is_wanted() or any(trial.log_bytes > self._log.stored_bytes for trial in wanted):
                self.push()
                return
            _all_at_once(trial.record.push for trial in wanted)

    def push(self) -> None:
        """Copy all that has changed.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the sweep's folder cannot be read or written to.
        """
        with self._lock:
            self._follow()
            _all_at_once(trial.record.copy for trial in self._trials.values())
            self._record.copy()
            self._push_best()
            self._log.push(self._followed_bytes)
            for record in (self._record, *(trial.record for trial in self._trials.values())):
                record.mark()
            self._trials = {id: trial for id, trial in self._trials.items() if not trial.is_complete}

    def take_over(self, may_be_ahead: bool) -> bool:
        """Have the sweep's folder be as the store's, unless it continues that; returns True if it does.

        Args:
            may_be_ahead: nobody else has worked on the sweep since this machine has.

        Raises:
            StoreFault: the store cannot be used.
            OSError: the sweep's folder cannot be written to.
        """
        with self._lock:
            continues = [self._log.take_over(may_be_ahead), self._record.take_over(may_be_ahead)]
            self._follow()
            self._remove_unknown_trials()
            self._bring_best()
            complete = [trial.record for trial in self._trials.values() if trial.is_complete]
            if may_be_ahead:
                complete = [record for record in complete if not record.is_here]
            _all_at_once(record.replace for record in complete)
            self._trials = {id: trial for id, trial in self._trials.items() if not trial.is_complete}
            records = [trial.record for trial in self._trials.values()]
            continues += _all_at_once(partial(record.take_over, may_be_ahead) for record in records)
            return all(continues)

    def _remove_unknown_trials(self) -> None:
        """Remove what is left of trials that the log does not know, here and there: they begin again."""
        for path in self._folder.trials.glob("*"):
            if path.name not in self._trials:
                shutil.rmtree(path)
        for trial_id in (self._remote / TRIALS).folders():
            if trial_id not in self._trials:
                (self._remote / TRIALS / trial_id).remove_all()

    def _bring_best(self) -> None:
        file = self._folder.best_config
        self._best = self._remote.read(file.name) or b""
        if self._best:
            write_durably(file, self._best)
        else:
            file.unlink(missing_ok=True)

    def _follow(self) -> None:
        """Take in what the log says of trials since it was last read."""
        for line in self._log.read(self._followed_bytes).splitlines(keepends=True):
            self._followed_bytes += len(line)
            content = _trial_in(line)
            if content is not None:
                self._note(content)

    def _note(self, content: Mapping[str, Any]) -> None:
        trial_id, params = str(content["id"]), content.get("params", {})
        if content.get("state") in NOT_TRAINED:
            return
        trial = self._trials.get(trial_id)
        if trial is None:
            folder = self._folder.trials / trial_id / TRACKING
            record = RecordCopy(self._remote / TRIALS / trial_id, folder)
            trial = self._trials[trial_id] = _TrialCopy(record, params, self._followed_bytes)
        elif params != trial.params:
            trial.params, trial.log_bytes = params, self._followed_bytes
        trial.is_complete = bool(content.get("mlflow_run_id")) and not self._may_resend

    def _wanted(self) -> list[_TrialCopy]:
        return [trial for trial in self._trials.values() if trial.record.is_wanted()]

    def _best_here(self) -> bytes:
        file = self._folder.best_config
        return file.read_bytes() if file.exists() else b""

    def _push_best(self) -> None:
        data = self._best_here()
        if data != self._best:
            self._remote.write(self._folder.best_config.name, data)
            self._best = data


def _trial_in(line: bytes) -> dict[str, Any] | None:
    """Return how a trial stands by a line of the log; None for a line that says something else."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    is_trial = isinstance(content, dict) and content.get("kind") == "trial" and "id" in content
    return content if is_trial else None


def _all_at_once(actions: Iterable[Callable[[], Any]]) -> list[Any]:
    """Call functions in threads; returns their results in order.

    Raises:
        Exception: the first one that a function has raised; those that have not begun are left out.
    """
    with ThreadPoolExecutor(AT_ONCE, "copy-record") as threads:
        futures = [threads.submit(action) for action in actions]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((future for future in futures if future in done and future.exception() is not None), None)
        if failed is not None:
            threads.shutdown(wait=True, cancel_futures=True)
            failed.result()
        return [future.result() for future in futures]
