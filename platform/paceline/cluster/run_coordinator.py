"""The coordinator of a run: workers report to it, it records, and the driver watches it.

One per run, in the driver's process when training is there too, else in an actor on the driver's node.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paceline.cluster.final_report import (
    FinalReport,
    lost_text,
    read_outcome,
    unrecorded_text,
    without_secrets,
    write_outcome,
)
from paceline.cluster.heartbeats import (
    SILENCE_SECONDS,
    Heartbeats,
    SilentRank,
    lost_warning,
    silence_warning,
)
from paceline.cluster.kept_checkpoints import kept_checkpoints, stored_checkpoints
from paceline.cluster.run_costs import CostUnits, RunCosts
from paceline.cluster.run_events import START, Event, EventCursor, EventLog, ReportedTags
from paceline.cluster.run_folder import RUN_FOLDER_REMOVED
from paceline.errors import EnvironmentFault, text_of
from paceline.storage.address import RunStore
from paceline.tracking import metrics
from paceline.tracking.costs import COST_FILE, Ledger
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import hurry, note_stored, stored_bytes
from paceline.tracking.uploads import Uploads

Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass
class RunView:
    """Events that a watcher has not seen yet, and the newest progress."""

    events: list[Event]
    step: int
    samples_per_second: float
    metrics: dict[str, float] = field(default_factory=dict)
    ended: bool = False
    """True once training has reported how it ended."""
    cursor: EventCursor = START
    """Position after these events. The watcher passes it the next time, to get only newer ones."""


class RunCoordinator:
    """Takes the reports of rank 0. Metrics are durable once `metrics` has returned True.

    One coordinator belongs to one launch. So it also distinguishes the worker groups of the launch from those of
    others, see `enter` and `may_commit`.
    """

    registers_checkpoints = True
    """True if the checkpoints that are kept are registered in MLflow at the end."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        counting: CostUnits | None = None,
        uploads_in_own_process: bool = False,
        store: RunStore | None = None,
        is_new: bool = False,
        silence_seconds: float = SILENCE_SECONDS,
        uploads: Uploads | None = None,
    ) -> None:
        """Open the run's record in `folder`.

        Args:
            on_event: is called with the kind and the details of each event, in place of the watcher; none is kept then.
            counting: units of the run's cost; None: it is counted elsewhere.
            uploads_in_own_process: True if this process trains, so that another one sends to MLflow.
            store: place of the run, if that is in an object store.
            is_new: True if the run was never begun before, see `RunRecorder`.
            silence_seconds: seconds without a heartbeat after which the watcher is warned about a rank.
            uploads: sends the record to MLflow, beside other records.

        Raises:
            OSError: the folder cannot be written to.
        """
        self._folder = folder
        self._heartbeats = Heartbeats(silence_seconds)
        self._store = store
        self._recorder = RunRecorder(folder, record, uploads_in_own_process, is_new, uploads)
        self._outcome = read_outcome(folder)  # this coordinator may be one that died and was started again
        self._workers: list[bytes] = []
        self._dismissed = False
        self._events = EventLog()
        self._on_event = on_event or self._events.add
        self._view = RunView([], (self._outcome or {}).get("step", 0), 0.0)
        self._has_lost_group = False
        self._silent_at_loss: list[SilentRank] = []
        self._stop = False
        self._reported_tags = ReportedTags(self.tag)
        self._is_in_trouble = False
        self._is_removed = False
        """True once the run's folder was seen to be removed."""
        self._costs: RunCosts | None = None
        self._ledger: Ledger | None = None
        if counting is not None:
            self.start_counting(counting)

    def begin(self, device: str, workers: int | None = None) -> None:
        """Note that the workers have started, and training is being set up.

        Args:
            device: name of the device that they compute on.
            workers: number of workers; None: as many as were asked for.
        """
        if self._costs is not None:
            self._costs.begin(workers)
        self.event("stage", {"text": "building the model and loading the data"})
        self.tag({metrics.DEVICE: device})
        self.start_uploading()

    def start_uploading(self) -> None:
        """Begin to send what is recorded; imports MLflow, in a thread or process, which takes seconds."""
        self._recorder.start_uploading()

    def metrics(self, readings: Sequence[MetricReading]) -> bool:
        """Take readings, in the order of the steps, and record them; see `record`."""
        for reading in readings:
            self.note(reading.step, reading.values, reading.age_seconds)
        return self.record(readings)

    def note(self, step: int, values: Mapping[str, float], age_seconds: float = 0.0) -> None:
        """Show the values of a step, which were taken `age_seconds` ago, to the watcher."""
        self._view.step = max(step, self._view.step)
        self._view.metrics.update(values)
        self._view.samples_per_second = values.get("samples_per_second", self._view.samples_per_second)
        if self._costs is not None:
            self._costs.measure(step, values, age_seconds)

    def record(self, readings: Sequence[MetricReading]) -> bool:
        """Make readings durable; return True if they are. If not, they may be given again, with later ones.

        Never raises: training continues regardless.
        """
        try:
            self._recorder.append([point for reading in readings for point in reading.points()])
        except OSError as error:
            if not self._is_in_trouble:
                message = f"the metrics of step {readings[0].step} could not be recorded: {error}"
                self._warn("not-written", f"{message}; they are kept, and tried again")
            self._is_in_trouble = True
            return False
        self._is_in_trouble = False
        if self._recorder.was_removed and not self._is_removed:
            self._note_removed()
        if self._costs is not None:  # here, where training does not wait for the disk
            self._costs.save_sometimes()
        self.start_uploading()  # a coordinator that was started again was not asked to
        return True

    def progress(self, step: int, samples_per_second: float) -> bool:
        """Take the progress of training; return True if the run should stop."""
        self._view.step, self._view.samples_per_second = step, samples_per_second
        return self._stop

    def event(self, kind: str, details: dict[str, Any]) -> None:
        """Pass an event to the watcher. Some are only recorded: the data of the run, the machines of its ranks, the
        conditions of its speed, preemptions, and ranks that the others wait for; separate warnings report the last
        two."""
        if kind == "datasets":
            self._record_datasets(details)
            return
        if self._reported_tags.take(kind, details) and kind != "initial_weights":
            return
        self._on_event(kind, details)
        if kind == "batch":
            self.tag({key: str(details[name]) for key, name in metrics.FOUND_SIZES.items()})
        elif kind == "stopped_early":
            self.tag({metrics.STOPPED_EARLY: details["text"]})
        elif kind == "optimizer":
            self.tag({metrics.OPTIMIZER: details["text"]})

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; one that cannot be recorded is reported to the watcher."""
        try:
            self._recorder.set_tags(tags)
        except OSError as error:
            self._warn("not-written", f"{', '.join(tags)} could not be recorded: {error}")

    def request_stop(self) -> None:
        """Ask the run to save its state and end."""
        self._stop = True

    @property
    def stop_requested(self) -> bool:
        """True once `request_stop` has been called."""
        return self._stop

    def secure(self, end: int | None = None) -> tuple[int, bool]:
        """Have the record stored in the run's store soon.

        Args:
            end: bytes of the record that have to be stored, as an earlier call returned them; None: all that exist now.

        Returns:
            The number of bytes, and True if they are stored.
        """
        end = self._recorder.size if end is None else end
        stored = stored_bytes(self._folder)
        # without the mark the working copy was removed: the driver is gone, and the rest is not uploaded any more
        is_there = self._store is None or (stored is not None and stored >= end)
        if not is_there:
            hurry(self._folder)
        return end, is_there

    def enter(self, worker: bytes) -> bool:
        """Register a worker process by its actor's pickled handle; return True if there is work left."""
        self._workers.append(worker)
        self._heartbeats.forget()  # of an earlier group
        self._has_lost_group = False
        return self._outcome is None and not self._dismissed

    def beat(self, rank: int, place: str) -> None:
        """Take the heartbeat of a rank; `place` names its process and machine."""
        self._heartbeats.beat(rank, place)

    def lose_group(self, rank: int, reason: str) -> None:
        """Note that a rank has lost its connection to the others; the first one of a group is reported."""
        if not self._has_lost_group and self._outcome is None and not self._dismissed:
            self._has_lost_group = True
            self._silent_at_loss = self._heartbeats.silent()
            self._heartbeats.forget()  # the ranks leave
            self._warn("group-lost", lost_warning(rank, reason))

    @property
    def _is_at_work(self) -> bool:
        return self._outcome is None and not self._has_lost_group

    def silent_ranks(self) -> list[SilentRank]:
        """Return the ranks that have not been heard for too long, or had not when the group was lost."""
        return self._silent_at_loss if self._has_lost_group else self._heartbeats.silent()

    def may_commit(self) -> bool:
        """Return True if the launch still continues, so that its rank 0 may put a checkpoint in place."""
        return not self._dismissed

    def dismiss(self) -> list[bytes]:
        """End the launch, whatever its workers do; return their handles."""
        self._dismissed = self._stop = True
        return self._workers

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Record how training ended, as rank 0 or the rank that failed reports it; the first report counts.

        Args:
            outcome: with readings that could not be recorded before, see `FinalReport`. They are recorded now.
        """
        self._heartbeats.forget()  # they leave
        words = FinalReport.read(outcome)
        if words.unrecorded and not self.metrics(words.unrecorded):
            self._warn("unrecorded", unrecorded_text(words.unrecorded[0].step))
        self.note_lost(words.lost)
        if self._outcome is not None:
            return
        self._outcome = without_secrets(words.ending)
        self.count(words.ending)
        try:
            write_outcome(self._folder, self._outcome)
        except OSError as error:  # the file only serves a coordinator that has to start again
            self._warn("not-written", f"how training ended could not be written down: {error}")

    def _warn(self, code: str, message: str, **details: Any) -> None:
        self.event("warning", {"code": code, "message": message, **details})

    def _note_removed(self) -> None:
        """Handle the removal of the run's folder: have training save its state and end, and MLflow get the rest."""
        self._is_removed = self._stop = True
        try:
            if self._store is not None:
                note_stored(self._folder, 0)  # MLflow is to wait for the store again
            self._recorder.restore()
        except OSError as error:
            self._warn("not-written", f"the record could not be written again: {error}")
        self._warn(RUN_FOLDER_REMOVED, f"the run's folder was removed, and training ends: {self._folder.parent}")

    def note_lost(self, readings: int) -> None:
        """Report the number of readings that were dropped to the watcher and MLflow, unless it is 0."""
        if readings:
            self.tag({metrics.NOT_RECORDED: lost_text(readings)})
            self._warn("readings-dropped", lost_text(readings), readings=readings)

    def outcome(self) -> dict[str, Any] | None:
        """Return the end of training; None while it continues, or if it died without a report."""
        return self._outcome

    def view(self, cursor: EventCursor = START) -> RunView:
        """Return the current state, with the events after a cursor."""
        for silent in self._heartbeats.newly_silent() if self._is_at_work else ():
            self._warn("rank-silent", silence_warning(silent))
        view = self._view
        ended = self._outcome is not None
        events, cursor = self._events.since(cursor)
        return RunView(events, view.step, view.samples_per_second, dict(view.metrics), ended, cursor)

    def history(self) -> list[tuple[str, float, int]]:
        """Return all recorded points: (key, value, step)."""
        return [(point.key, point.value, point.step) for point in self._recorder.history()]

    def abandon(self) -> None:
        """Send no more to MLflow, and wait for nothing; unsent entries stay in the journal."""
        self._recorder.abandon()

    def hand_over(self, status: Status, reason: str | None) -> bool:
        """Record the end of the run, and leave it to others to send it, see `RunRecorder.hand_over`.

        Returns:
            True if the run was never begun before this coordinator.
        """
        self._recorder.hand_over(status, reason)
        return self._recorder.is_new

    def start_counting(self, counting: CostUnits) -> None:
        """Start to count the cost of the run."""
        self._costs = RunCosts(self._folder, counting)

    def count(self, outcome: Mapping[str, Any]) -> None:
        """Take the division of the training time, once training is over."""
        if self._costs is not None:
            self._costs.end(outcome.get("seconds", {}), outcome.get("elapsed_seconds"))

    def cost(self) -> Ledger | None:
        """Return the cost of the run, once it was closed; None if it is not counted."""
        return self._ledger

    def close(
        self,
        status: Status,
        reason: str | None,
        timeout_seconds: float,
        allocated: float | None = None,
        warnings: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Send what is left and end the MLflow run; return an `UploadReport` as a mapping, with the `straggler` that
        was reported.

        Args:
            allocated: unit-seconds that this launch has had, as its driver has measured them.
            warnings: warnings of all launches, which the note lists.
        """
        self.start_uploading()
        self._record_cost(allocated)
        if status == "FINISHED" and self.registers_checkpoints:  # otherwise it may continue, and remove them
            self._record_checkpoints()
        try:
            report = self._recorder.close(status, reason, timeout_seconds, None, self._ledger, warnings)
        except OSError as error:  # no room for the end: what is in the journal is sent all the same
            report = self._recorder.close(status, reason, timeout_seconds, None, self._ledger, warnings)
            report = replace(report, error=f"the end of the run could not be recorded: {error}")
        return {**asdict(report), "straggler": "\n".join(self._reported_tags.stragglers)}

    def stop_waiting(self) -> None:
        """Let `close` wait for MLflow no longer, now or later; unsent entries stay in the journal."""
        self._recorder.stop_waiting()

    def _record_datasets(self, sets: Mapping[str, Any]) -> None:
        try:
            self._recorder.add_datasets(sets)
        except OSError as error:
            self._warn("not-written", f"the data sets could not be recorded: {error}")

    def _record_checkpoints(self) -> None:
        try:
            points = self._recorder.history()
            if self._store is None:
                models = kept_checkpoints(self._folder.parent / "checkpoints", points)
            else:
                models = stored_checkpoints(self._store, points)
            for model in models:
                self._recorder.add_model(model)
        except (OSError, EnvironmentFault) as error:
            self._warn("not-written", f"the checkpoints could not be recorded: {text_of(error)}")

    def _record_cost(self, allocated: float | None) -> None:
        if self._costs is None:
            return
        self._ledger = ledger = self._costs.ledger(allocated)
        step = max(self._view.step, (self._outcome or {}).get("step", 0))
        try:
            self._costs.save(ledger)
            self._recorder.add_artifact(COST_FILE, json.dumps(ledger.to_json(), indent=1).encode())
            self._recorder.append_newest(ledger.metrics(), step)
        except OSError as error:
            self._warn("not-written", f"what the run cost could not be recorded: {error}")
