"""Sweeps in an object store: claim one on this machine, in its working copy, and in the store; and keep its copy there.

A sweep is claimed as a run is, see `cluster.stored_runs`: the newest sweep of the name by its sweep.json, its log and
records, the keeper. Its log, its own record, and those of its trials are copied in this order:

the log is read  ->  records of its trials  ->  the sweep's own record, best.yaml  ->  the log  ->  marks

So a trial that has ended by the store's log has all of its record there. And what waits for a trial's record (its
checkpoints, MLflow) continues only once the store's log has the trial with the values that it has now: whoever resumes
the sweep gives it the same ones.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from paceline.cluster.resume_rules import nothing_to_resume
from paceline.cluster.stored_runs import ClaimedStoredRun, HeldName, Tell, newest_stored, note_claim
from paceline.cluster.unfinished_runs import Intent, new_run
from paceline.config.experiment import ExperimentConfig
from paceline.config.shareable import shareable
from paceline.durable import write_durably
from paceline.private_files import make_folder
from paceline.storage.address import LAUNCH, SWEEP_LOG, TRACKING, TRIALS, RunStore, StoreAddress
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.run_keeper import RunKeeper
from paceline.storage.stored_record import RecordCopy, StoredLog
from paceline.sweeps.states import NOT_TRAINED
from paceline.sweeps.sweep_folder import SWEEPS, SweepFolder
from paceline.tracking.upload_cursor import note_stored

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


def unfinished_content(storage: StoreAddress, name: str) -> Mapping[str, Any]:
    """Return what the file of the newest sweep of a name says, when that is unfinished; else nothing.

    Raises:
        EnvironmentFault: the store cannot be used, or the file is damaged.
    """
    found = _newest_unfinished(RunStore(str(storage.pinned()), name, ""))
    return {} if found is None else found[1]


def claim_stored_sweep(
    config: ExperimentConfig, storage: StoreAddress, intent: Intent, tell: Tell
) -> ClaimedStoredRun[SweepFolder]:
    """Continue the newest unfinished sweep of this name, or start a new one, in an object store.

    Args:
        tell: is called with what is waited for.

    Raises:
        EnvironmentFault: the store or the working copy cannot be used, or something of this name is running.
        ConfigError: see `claim_sweep`.
    """
    name = HeldName.hold(storage, config.name, tell)
    with name.kept():
        run, copy, resumed = _choose(config, name, intent)
    keeper = RunKeeper(run, run.folder / SweepFolder.FILE, copy, name.lease)
    keeper.start()
    return ClaimedStoredRun(SweepFolder(run.folder), resumed, name.lock, keeper=keeper)


def _choose(config: ExperimentConfig, name: HeldName, intent: Intent) -> tuple[RunStore, SweepCopy, bool]:
    found = None if intent == "new" else _newest_unfinished(name.base)
    if found is None and intent == "resume":
        raise nothing_to_resume(SWEEPS.word, name.base.home)
    if found is None:
        return _begin(config, name)
    run, content = found
    launch_here = str(SweepFolder(run.folder).read().get(LAUNCH, ""))
    _show_here(run, content, launch_here)
    if not SWEEPS.is_continued(SweepFolder(run.folder), config, intent):
        return _begin(config, name)
    copy = SweepCopy(run)
    if launch_here == content.get(LAUNCH) and copy.take_over(may_be_ahead=True):
        run = replace(run, trusted=(launch_here,))
    else:
        copy = SweepCopy(run)
        copy.take_over(may_be_ahead=False)
    stored = shareable(config).model_dump(mode="json")
    note_claim(run, SweepFolder.FILE, {**content, "status": "running", "config": stored})
    return run, copy, True


def _begin(config: ExperimentConfig, name: HeldName) -> tuple[RunStore, SweepCopy, bool]:
    folder = new_run(name.home, config, SweepFolder)
    run = replace(name.base, run_id=folder.run_id)
    note_stored(folder.tracking, 0)
    note_claim(run, SweepFolder.FILE, folder.read())
    return run, SweepCopy(run), False


def _newest_unfinished(base: RunStore) -> tuple[RunStore, dict[str, Any]] | None:
    found = newest_stored(base, SweepFolder.FILE)
    return None if found is None or found[1].get("status") in SWEEPS.over else found


def _show_here(run: RunStore, content: Mapping[str, Any], launch_here: str) -> None:
    """Have the sweep's file and the names of its trials on this machine, as `SWEEPS` looks at them.

    The launch in the file stays that of the working copy, which is not brought up to date yet.
    """
    data = json.dumps({**content, LAUNCH: launch_here}, indent=1).encode()
    write_durably(run.folder / SweepFolder.FILE, data)
    for trial_id in (RemoteFolder(run.address) / TRIALS).folders():
        make_folder(SweepFolder(run.folder).trials / trial_id)
