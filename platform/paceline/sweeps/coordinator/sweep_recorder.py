"""Records of a sweep: its log, its own MLflow run, its trials' runs, and events for the driver."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline.cluster.kept_checkpoints import kept_checkpoints, stored_checkpoints
from paceline.cluster.run_coordinator import Status
from paceline.cluster.run_events import EventLog
from paceline.config.constraints import Constraint
from paceline.errors import PacelineError, text_of
from paceline.redaction import redact
from paceline.storage.address import RunStore
from paceline.sweeps.coordinator.record_closer import Closed, RecordCloser
from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.write_queue import GroupCommit, WriteQueue
from paceline.sweeps.restart_state import LogEntry, launch_entry, of_launch
from paceline.sweeps.results.ranking import BestSetting, Objective, best_trial, with_violations
from paceline.sweeps.states import ENDED, NOT_TRAINED, TRIAL, moved
from paceline.sweeps.sweep_log import SweepLog, answer_entry, rung_entry, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord, trial_state_tags
from paceline.tracking.run_recorder import TRIAL_STATUS, RunRecorder
from paceline.tracking.sweep_note import sweep_points
from paceline.tracking.upload_cursor import UploadReport
from paceline.tracking.upload_threads import UploadThreads
from paceline.tracking.uploads import Uploads

CHILD_CLOSE_SECONDS = 30.0
"""Time that a trial's record waits for an MLflow that takes nothing; what is unsent by then stays in its journal."""
MOST_WRITERS = 64
"""Records of trials that are written to at the same time, at most."""
PARENT_SECONDS = 1.0
"""Least time between two updates of the best values and the counts in the sweep's own record."""


class SweepRecorder:
    """Writes the records of a sweep. A full disk is reported to the watcher, and holds up nothing."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint] = (),
        launch_id: str = "",
        store: RunStore | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        """Open the sweep's journal and its record.

        Args:
            launch_id: tells a coordinator that is started again from that of a later launch.
            store: where the sweep is kept when that is an object store.
            uploads: sends all records to MLflow; by default, each recorder does so, and threads of this process once
                a record is over.

        Raises:
            OSError: the folder cannot be written to.
        """
        self.folder, self.uri, self._store, self._launch_id = folder, record.uri, store, launch_id
        self._objectives, self._constraints = objectives, constraints
        log = SweepLog(folder)
        launch = log.history.launch
        self.recovered = launch if launch is not None and launch_id and launch.id == launch_id else None
        """The state in which the coordinator of this launch died that this one replaces; None: it is the first."""
        if self.recovered is None:
            log.append([launch_entry(launch_id)])
        self._log = GroupCommit(log.append, ThreadPoolExecutor(1, "sweep-log"))
        self.uploads = uploads
        """Sender of the records while they are written; None: each recorder sends its own."""
        self._parent = RunRecorder(folder / "tracking", record, uploads=uploads)
        self._parent_writes = WriteQueue(ThreadPoolExecutor(1, "sweep-record"))
        self.threads = ThreadPoolExecutor(MOST_WRITERS, "trial-record")
        """For the records of the trials."""
        self._parent_updated = -PARENT_SECONDS
        self._parent_timer: asyncio.TimerHandle | None = None
        self._closer = RecordCloser(record.uri, uploads or UploadThreads())
        self._is_in_trouble = False
        self.trials: dict[str, Trial] = {}
        """All trials that are known, by id."""
        self.metric_names: set[str] = set()
        """Names that some trial has reported."""
        self._best = BestSetting(objectives)
        self.endings: Counter[str] = Counter()
        """Number of trials that have ended in each state."""
        self.version = 1
        """Grows with every change of a trial."""
        self._versions: dict[str, int] = {}  # by trial, the newest last
        for trial in log.history.trials.values():
            # the launch that ran it is gone, unless its group has only lost its coordinator
            is_under_way = self.recovered is not None and self.recovered.under_way(trial.id) is not None
            is_lost = trial.state == "running" and not is_under_way
            self.note(replace(trial, state="pending") if is_lost else trial)
        self.last_rungs = log.history.last_rungs
        """Values at the rung that each trial reached last which is not under way."""
        self.events = EventLog()
        """For the watcher."""

    @property
    def records_left(self) -> int:
        """Number of records that are being closed."""
        return self._closer.num_open

    def store_of(self, trial_id: str) -> RunStore | None:
        """Return the place of a trial in the object store; None for a folder."""
        return None if self._store is None else self._store.trial(trial_id)

    def has_ended(self, trial_id: str) -> bool:
        """Return True if a trial is over for good."""
        known = self.trials.get(trial_id)
        return known is not None and known.state in ENDED

    def save(self, entries: Sequence[LogEntry], when_failed: Callable[[], None] = lambda: None) -> None:
        """Write down what a coordinator needs that is started again; a full disk is reported once."""

        def done(written: "asyncio.Future[None]") -> None:
            has_failed = not written.cancelled() and isinstance(written.exception(), OSError)
            if has_failed and not self._is_in_trouble:
                self._report_failed_write(written, "the state of the slots")
            self._is_in_trouble = has_failed
            if has_failed:
                when_failed()

        if entries:
            self._log.put(*(of_launch(entry, self._launch_id) for entry in entries)).add_done_callback(done)

    def begin(self) -> None:
        """Begin to upload the sweep's own record, and what earlier launches have left open of their trials' records."""
        self._parent.start_uploading()
        self._close_left_open()

    def _close_left_open(self) -> None:
        """Close the records of trials that have ended, and that MLflow does not have all of."""
        for trial in self.trials.values():
            if trial.state in ENDED and trial.state != "skipped" and not trial.mlflow_run_id:
                folder = self.tracking_of(trial.id)
                self._closer.close_anew(folder, trial, CHILD_CLOSE_SECONDS, self._when_closed(trial.id))

    def tracking_of(self, trial_id: str) -> Path:
        """Return the folder of a trial's record."""
        return self.folder / "trials" / trial_id / "tracking"

    def report_event(self, kind: str, **details: Any) -> None:
        """Let the watcher know something."""
        self.events.add(kind, details)

    def note(self, trial: Trial) -> None:
        """Keep in mind how a trial stands, without writing it down; its reason without secrets. One that has ended says
        which constraints it breaks."""
        trial = replace(trial, reason=redact(trial.reason)) if trial.reason else trial
        if self._constraints and trial.state in ENDED and trial.state not in NOT_TRAINED:
            trial = with_violations(trial, self._constraints)
        known = self.trials.get(trial.id)
        if known is not None:
            moved(TRIAL, known.state, trial.state)
        if trial.state in ENDED and (known is None or known.state not in ENDED):
            self.endings[trial.state] += 1
        self.trials[trial.id] = trial
        self.metric_names.update(trial.metrics)
        self._best.add(trial)
        self.version += 1
        self._versions.pop(trial.id, None)
        self._versions[trial.id] = self.version

    def trial(self, trial: Trial) -> None:
        """Write down how a trial stands."""
        self.note(trial)
        # if it fails, a later launch would run it again, and find it finished by its checkpoint
        self._write(trial_entry(self.trials[trial.id]), f"how trial {trial.id} stands")

    def changed_since(self, version: int) -> dict[str, Trial]:
        """The trials that have changed since a version, by id."""
        changed = {}
        for trial_id in reversed(self._versions):
            if self._versions[trial_id] <= version:
                break
            changed[trial_id] = self.trials[trial_id]
        return changed

    def rung(self, trial_id: str, values: Mapping[str, float]) -> None:
        """Write down that a trial has reached a rung."""
        self._write(rung_entry(trial_id, values), f"the rung of trial {trial_id}")

    def answer(self, trial_id: str) -> None:
        """Write down that a trial has its decision at its rung."""
        self._write(answer_entry(trial_id), f"the rung of trial {trial_id}")

    async def durable(self) -> None:
        """Wait until all that was written down until now is on the disk; what could not be written was reported."""
        await self._log.settled()

    def end(self, run: RunningTrial) -> None:
        """A trial has ended: write that down, and close its record in the background."""
        trial = run.trial
        self.trial(trial)
        self._update_parent_soon()
        tagged = run.write(lambda coordinator: coordinator.tag(trial_state_tags(trial.state)))
        tagged.add_done_callback(lambda done: self._report_failed_write(done, f"the state of trial {trial.id}"))
        status = TRIAL_STATUS.get(trial.state, "KILLED")
        self.close_record(run, status, trial.reason or None, CHILD_CLOSE_SECONDS)
        if trial.reason:
            self.report_event("ended", trial=trial.id, state=trial.state, reason=trial.reason)

    def close_record(self, run: RunningTrial, status: Status, reason: str | None, timeout_seconds: float) -> None:
        """Close a trial's record in the background. Once it is its turn, it waits `CHILD_CLOSE_SECONDS` for an MLflow
        that takes nothing, at the most."""
        seconds = min(timeout_seconds, CHILD_CLOSE_SECONDS)
        folder = self.tracking_of(run.trial.id)
        self._closer.close(run, folder, status, reason, seconds, self._when_closed(run.trial.id))

    async def close(
        self, status: Status, reason: str | None, note: str, artifacts: Mapping[str, bytes], timeout_seconds: float
    ) -> dict[str, Any]:
        """Close the sweep's own record while those of the trials are closed; returns a `UploadReport` as a mapping."""
        if self._parent_timer is not None:
            self._update_parent()
        best = best_trial(list(self.trials.values()), self._objectives)
        if best is not None:
            registered = self._parent_writes.put(lambda: self._add_checkpoint_of(best))
            registered.add_done_callback(lambda done: self._report_failed_write(done, "the best trial's checkpoint"))
        words = status, reason, note, artifacts, timeout_seconds
        others = asyncio.create_task(self._closer.finish(timeout_seconds))
        report = await self._parent_writes.put(lambda: self._close_parent(*words))
        await others
        if not report["unsent"]:  # MLflow is there now; it was away for too long when some of the trials ended
            self._close_left_open()
            await self._closer.finish(timeout_seconds)
        self._closer.give_up()
        await self.durable()
        return report

    def _close_parent(
        self,
        status: Status,
        reason: str | None,
        note: str,
        artifacts: Mapping[str, bytes],
        timeout_seconds: float,
    ) -> dict[str, Any]:
        error = ""
        try:
            for path, data in artifacts.items():
                self._parent.add_artifact(path, data)
            report = self._parent.close(status, reason, timeout_seconds, note)
        except OSError as trouble:  # no room for the end: what is in the journal is sent all the same
            error = f"the end of the sweep could not be recorded: {trouble}"
            report = self._close_without_words(status, timeout_seconds)
        return {**asdict(report), **({"error": error} if error else {})}

    def _add_checkpoint_of(self, best: Trial) -> None:
        """Have the final checkpoint of the best trial registered: those of all others would only be in the way."""
        folder = self.folder / "trials" / best.id
        entries = Journal(folder / "tracking" / JOURNAL_FILE).read()
        points = [MetricPoint.from_json(entry.content) for entry in entries if entry.kind == "point"]
        run_id, store = f"{self.folder.name}/{best.id}", self.store_of(best.id)
        if store is None:
            kept = kept_checkpoints(folder / "checkpoints", points, run_id)
        else:
            kept = stored_checkpoints(store, points, run_id)
        for model in kept[:1]:
            self._parent.add_model(model)

    def _close_without_words(self, status: Status, timeout_seconds: float) -> Any:
        try:
            return self._parent.close(status, None, timeout_seconds)
        except OSError:  # the record counts as closed now: another call only sends
            return self._parent.close(status, None, timeout_seconds)

    def _when_closed(self, trial_id: str) -> Closed:
        def closed(report: UploadReport) -> None:
            is_whole = not report.unsent and not report.error
            if report.run_id and is_whole:  # otherwise a later launch sends the rest
                self.trial(replace(self.trials[trial_id], mlflow_run_id=report.run_id))
            if report.error:
                message = f"MLflow does not have all of it: {report.error}"
                self.report_event("warning", code="unsent", message=message, trial=trial_id)

        return closed

    def _update_parent_soon(self) -> None:
        if self._parent_timer is None:
            seconds = max(0.0, self._parent_updated + PARENT_SECONDS - time.monotonic())
            self._parent_timer = asyncio.get_running_loop().call_later(seconds, self._update_parent)

    def _update_parent(self) -> None:
        if self._parent_timer is not None:
            self._parent_timer.cancel()
        self._parent_timer, self._parent_updated = None, time.monotonic()
        best = self._best.summary()
        values = (
            {metric: spread.mean for metric, spread in best.spreads.items() if spread.n} if best is not None else {}
        )
        # the best setting's values, each the mean over its seeds, and how many trials ended in which way
        self._record(sweep_points(self.endings, values, int(time.time() * 1000)), "how many trials have ended")

    def take_costs(self, costs: Mapping[str, float]) -> None:
        """Let the sweep's own record have what the sweep has cost, as metrics."""
        step = self.endings.total()
        written = self._parent_writes.put(lambda: self._parent.append_newest(costs, step))
        written.add_done_callback(lambda done: self._report_failed_write(done, "what the sweep cost"))

    def _record(self, points: Sequence[MetricPoint], what: str) -> None:
        written = self._parent_writes.put(lambda: self._parent.append(points))
        written.add_done_callback(lambda done: self._report_failed_write(done, what))

    def _write(self, entry: LogEntry, what: str) -> None:
        self._log.put(entry).add_done_callback(lambda done: self._report_failed_write(done, what))

    def _report_failed_write(self, written: "asyncio.Future[Any]", what: str) -> None:
        error = None if written.cancelled() else written.exception()
        if error is not None:  # of any kind: it is the trouble of one entry, and the sweep continues
            kind = "" if isinstance(error, OSError | PacelineError) else f"{type(error).__name__}: "
            message = f"{what} could not be written down: {kind}{text_of(error)}"
            self.report_event("warning", code="not-written", message=message)
