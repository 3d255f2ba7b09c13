"""`SweepCoordinator`: the methods that the driver and Tune's trainables call.

Tune's trainables:   run_to_rung -> TrialReport        leave
worker groups:       enter -> take -> metrics, progress, rung ... -> finish -> take ...
the driver:          view, prune, give_up, end_early, group_failed, group_ended, close

An actor on the driver's node. All methods run on one event loop, so that none needs a lock.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cluster.run_coordinator import Status
from paceline.redaction import learn
from paceline.storage.address import RunStore
from paceline.sweeps.coordinator.group_failures import watch
from paceline.sweeps.coordinator.group_reports import GroupReports
from paceline.sweeps.coordinator.running_trial import RunningTrial, end_values
from paceline.sweeps.coordinator.slot_scheduler import SlotScheduler
from paceline.sweeps.coordinator.sweep_recorder import SweepRecorder
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.messages import UNSEEN, GroupShape, SweepView, TrialReport, TrialSpec, ViewCursor
from paceline.sweeps.states import ENDED
from paceline.sweeps.sweep_costs import Spent
from paceline.sweeps.trial import PlannedTrial, Trial, planned_order
from paceline.tracking.run_record import RunRecord
from paceline.tracking.uploader_process import UploaderProcess, can_upload_in_own_process

NOT_NOW = TrialReport("pending")
"""For a trial that does not begin, or continue, in this launch."""


class SweepCoordinator(GroupReports):
    """Holds the state of a sweep while it continues."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        rules: SweepRules,
        num_trials: int | None,
        launch_id: str = "",
        store: RunStore | None = None,
        uploads_in_own_process: bool = False,
    ) -> None:
        """Open the sweep's journal and its record. Where a coordinator of the same launch has died, take over its slots
        and the trials that are at work there.

        Args:
            num_trials: how many trials there will be at the most; None: nobody knows.
            launch_id: names the launch.
            store: where the sweep is kept when that is an object store.
            uploads_in_own_process: True if another process is to send all records to MLflow, so that this one has its
                interpreter for itself.

        Raises:
            OSError: the folder cannot be written to.
        """
        uploads = UploaderProcess() if uploads_in_own_process and can_upload_in_own_process(folder) else None
        recorder = SweepRecorder(folder, record, rules.objectives, rules.constraints, launch_id, store, uploads)
        super().__init__(SlotScheduler(rules, recorder, num_trials), recorder)
        self._watch: asyncio.Task[None] | None = None

    # --- the driver ----------------------------------------------------------------------------------------------

    async def prepare(self, shapes: Sequence[GroupShape]) -> None:
        """Want the groups of the first trials at once, and begin to upload the record."""
        if not any(slot.generation for slot in self._slots):  # a coordinator that has died may have done so
            for slot, shape in zip(self._slots, shapes if not self._scheduler.over else (), strict=False):
                slot.renew(shape)
        self._begin()
        await self._scheduler.settled()

    def _begin(self) -> None:
        if self._watch is None:
            self._recorder.begin()
            self._watch = asyncio.create_task(watch(self._scheduler))

    async def view(self, cursor: ViewCursor = UNSEEN) -> SweepView:
        """The state of things, with the events and the changed trials that a watcher has not seen; all by default."""
        if self._recorder.recovered is not None:
            self._begin()  # the driver has prepared the coordinator that this one replaces
        events, seen = self._recorder.events.since(cursor.events)
        known = cursor.version if self._recorder.events.has_written(cursor.events) else 0
        trials = self._recorder.changed_since(known)
        for run in [slot.run for slot in self._slots if slot.run is not None and slot.is_busy]:
            trials[run.trial.id] = replace(run.trial, seconds=run.seconds)
        view = SweepView(
            trials=sorted(trials.values(), key=planned_order),
            events=events,
            groups=[slot.wanted for slot in self._slots],
            over=self._scheduler.over,
            fault=self._scheduler.fault,
            disk_full=self._scheduler.disk.reason,
            busy=sum(slot.is_busy for slot in self._slots),
            cursor=ViewCursor(seen, self._recorder.version),
        )
        # the driver must not start a group that a coordinator started again does not know
        await self._scheduler.settled()
        return view

    async def prune(self, trial_id: str, reason: str) -> None:
        """Tune's scheduler has decided to end a trial."""
        run = self._scheduler.runs.get(trial_id)
        if run is None:
            return
        run.stop("pruned", reason)
        self._scheduler.stop_if_idle(run)
        await self._scheduler.notify()

    async def give_up(self, trial_id: str, reason: str) -> None:
        """Tune has given up a trial, since its own part of it failed: the trial ends as failed, whatever it does.

        One that the coordinator does not know is left for a later launch.
        """
        run, known = self._scheduler.runs.get(trial_id), self._recorder.trials.get(trial_id)
        if run is not None:
            self._scheduler.end(run, "failed", reason)
        elif known is None:
            self._recorder.report_event(
                "warning", code="trial-not-begun", message=f"trial {trial_id} did not begin: {reason}"
            )
        elif known.state not in ENDED:
            self._recorder.trial(replace(known, state="failed", reason=reason))
            self._recorder.report_event("ended", trial=trial_id, state="failed", reason=reason)
        self._scheduler.release_surplus_groups()
        await self._scheduler.notify()

    async def found_disk_full(self, trial_id: str, reason: str) -> None:
        """Tune's own part of a trial found the disk of the driver's node full: the trial is left for a later launch,
        whatever its workers do."""
        run = self._scheduler.runs.get(trial_id)
        if run is not None and not run.has_ended:
            self._scheduler.end(run, "pending", reason)
        if not self._recorder.has_ended(trial_id):
            await self._scheduler.found_disk_full(trial_id, reason)
        self._scheduler.release_surplus_groups()
        await self._scheduler.notify()

    async def found_store_fault(self, trial_id: str, reason: str) -> None:
        """Tune's own part of a trial cannot use the sweep's object store: all trials are left for a later launch."""
        await self._scheduler.found_store_fault(self._scheduler.runs.get(trial_id), reason)

    async def end_early(self, reason: str) -> None:
        """The user wants to stop, or a limit is reached: what is running saves its state, and can be resumed."""
        await self._scheduler.stop_all(reason)

    async def group_failed(self, slot_number: int, generation: int, reason: str) -> None:
        """A worker group could not be started, or gave up. A trial that it was at work on is taken up by another."""
        slot = self._slots[slot_number]
        if slot.is_current(generation):
            await self._failures.has_failed(slot, reason)

    async def group_started(self, slot_number: int, generation: int, units: float) -> None:
        """The driver has asked for the group that a slot wants, which has so many cores or GPUs."""
        self._scheduler.times.start(slot_number, generation, units)

    async def group_ended(self, slot_number: int, generation: int) -> None:
        """Nothing is left of the group that a slot had: its workers' processes have ended."""
        self._slots[slot_number].workers.pop(generation, None)
        self._scheduler.times.end(slot_number, generation)

    async def spent(self) -> Spent:
        """Return the time that the groups of this launch have spent until now."""
        return self._scheduler.times.spent()

    async def let_groups_go(self) -> None:
        """Let nothing begin any more, and groups leave that are not at work on a trial."""
        self._scheduler.over = self._scheduler.over or "closed"
        self._scheduler.release_surplus_groups()
        await self._scheduler.notify()

    async def workers_of(self, slot_number: int, generation: int) -> list[bytes]:
        """The pickled handles of the workers of one group, as far as they are known."""
        return list(self._slots[slot_number].workers.get(generation, []))

    async def workers(self) -> list[bytes]:
        """The pickled handles of all workers that may still be there, those of earlier groups among them."""
        return [worker for slot in self._slots for group in slot.workers.values() for worker in group]

    async def close(
        self,
        status: Status,
        reason: str | None,
        note: str,
        artifacts: Mapping[str, bytes],
        timeout_seconds: float,
        costs: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Let all groups go, close all records and upload what is left; returns a `UploadReport` of the sweep's own run
        as a mapping.

        Args:
            costs: metrics that tell what the sweep has cost.
        """
        self._scheduler.over = self._scheduler.over or "closed"
        if self._watch is not None:
            self._watch.cancel()
        await self._scheduler.all_opened()
        for run in list(self._scheduler.runs.values()):
            if run.begun is not None:  # its workers do not answer
                run.end("pending", "its workers did not stop in time")
            elif run.trial.state == "running":
                run.end("pending", reason or "")
            self._scheduler.release(run)
            self._recorder.trial(run.trial)
            told = run.trial.reason or reason or "the sweep ended"
            self._recorder.close_record(run, "KILLED", told, timeout_seconds)
        self._scheduler.release_surplus_groups()
        await self._scheduler.notify()
        self._recorder.take_costs(costs or {})
        return await self._recorder.close(status, reason, note, artifacts, timeout_seconds)

    async def records_left(self) -> int:
        """Return the number of trials that have ended, and whose records are not closed yet."""
        return self._recorder.records_left

    async def trials_of(self, ids: Sequence[str]) -> list[Trial]:
        """The trials with these ids, as far as they are known."""
        found = [
            self._scheduler.runs[id].trial if id in self._scheduler.runs else self._recorder.trials.get(id)
            for id in ids
        ]
        return [trial for trial in found if trial is not None]

    # --- Tune's trainables ---------------------------------------------------------------------------------------

    async def run_to_rung(self, spec: TrialSpec, visit: str = "", reported_step: int = 0) -> TrialReport:
        """Let a trial begin, or continue; returns when it stands at a rung or has ended.

        Args:
            reported_step: the step of the last rung that was reported to the caller during its visit.
            visit: tells one stay of the trial at a trainable from another. One that comes while the trial stands at a
                rung may bring it another checkpoint, so that it takes a slot again.
        """
        known = self._recorder.trials.get(spec.planned.id)
        if known is not None and known.state in ENDED:
            return TrialReport(known.state, end_values(known, self._scheduler.rung_of(known.id)))
        run = None
        if not self._scheduler.over:
            run = self._scheduler.runs.get(spec.planned.id) or await self._scheduler.open(spec)
        if run is None:
            await self._scheduler.notify()  # the sweep may have ended since it could not be recorded
            return NOT_NOW
        run.calls += 1
        call = run.calls
        if run.spec is None:
            await self._adopt(run, spec)
        if run.rung is not None and reported_step >= run.rung["step"]:
            run.is_reported = True  # by the coordinator that this one replaces
        has_place = run.state != "waiting"
        if has_place and run.is_reported and run.visit not in (None, visit):
            await self._scheduler.vacate(run)
            has_place = False
        run.visit = visit
        if not has_place:
            run.spec = spec
            await self._scheduler.assign(run, call)
        elif run.rung is not None and run.is_reported:
            run.leave_rung()
            self._recorder.answer(run.trial.id)
            await self._scheduler.notify()
        return await self._news(run, call)

    async def _adopt(self, run: RunningTrial, spec: TrialSpec) -> None:
        """Take what a recovered trial lacks; its group may wait for it."""
        learn(spec.record.secrets)
        run.spec = spec
        await self._scheduler.notify()

    async def _news(self, run: RunningTrial, call: int) -> TrialReport:
        """Wait until there is something to tell Tune; a trial that loses its slot meanwhile gets another one."""

        def is_over() -> bool:
            return run.calls != call or run.has_news

        await self._scheduler.until(lambda: is_over() or run.state == "displaced")
        while not is_over() and not self._scheduler.over:
            await self._scheduler.assign(run, call)
            await self._scheduler.until(lambda: is_over() or run.state == "displaced")
        report = run.report() if run.calls == call else NOT_NOW
        await self._scheduler.settled()  # an answer to Tune stays, whatever dies
        return report

    async def skip(self, planned: PlannedTrial, reason: str) -> None:
        """A trial that was chosen turned out to be no valid config."""
        run = self._scheduler.runs.get(planned.id)
        if run is not None:
            run.stop("skipped", reason)
            self._scheduler.stop_if_idle(run)
        elif not self._recorder.has_ended(planned.id):
            self._recorder.trial(Trial(planned.id, dict(planned.params), state="skipped", reason=reason))
        self._scheduler.release_surplus_groups()
        await self._scheduler.notify()
        await self._scheduler.settled()

    async def leave(self, trial_id: str, visit: str = "") -> None:
        """Let a trial save its state and give up its slot; it may come back later.

        Args:
            visit: as given to `run_to_rung`; nothing is done when the trial continues elsewhere meanwhile.
        """
        run = self._scheduler.runs.get(trial_id)
        if run is None or run.visit not in (None, visit):
            return
        run.calls += 1  # nobody waits for it any more
        await self._scheduler.vacate(run)
        await self._scheduler.settled()
