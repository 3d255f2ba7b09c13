"""Reports of the worker groups to the sweep's coordinator, and the trials that it gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.cluster.final_report import HINT_OF_UNRECORDED, FinalReport
from paceline.storage.store_faults import is_store_code
from paceline.sweeps.coordinator.group_failures import GroupFailures
from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.slot_scheduler import SlotScheduler
from paceline.sweeps.coordinator.sweep_recorder import SweepRecorder
from paceline.sweeps.messages import Attempt
from paceline.sweeps.restart_state import worker_entry
from paceline.sweeps.sweep_costs import WAITING
from paceline.tracking.metric_points import MetricReading

OF_THE_RECORD = (
    *("batch", "datasets", "initial_weights", "optimizer", "preemption", "ranks", "stamp", "stopped_early"),
    "straggler",
)
"""Kinds of events that go into a trial's own record."""


class GroupReports:
    """Gives the groups their trials, and takes what they report. Part of `SweepCoordinator`."""

    def __init__(self, scheduler: SlotScheduler, recorder: SweepRecorder) -> None:
        self._scheduler, self._recorder = scheduler, recorder
        self._slots = scheduler.slots
        self._failures = GroupFailures(scheduler)

    async def enter(self, slot_number: int, generation: int, rank: int, worker: bytes) -> int | None:
        """A worker process reports for work; returns the incarnation of its group, or None: there is none left."""
        slot = self._slots[slot_number]
        slot.workers.setdefault(generation, []).append(worker)
        self._recorder.save([worker_entry(slot_number, generation, worker)])
        if not slot.is_current(generation):
            return None
        if rank == 0 and not await self._failures.has_started(slot):
            return None
        if rank == 0:
            self._scheduler.times.turn_to(slot_number, generation, WAITING)
        incarnation = slot.incarnation
        await self._scheduler.settled()
        return incarnation

    async def take(self, slot_number: int, generation: int, incarnation: int) -> Attempt | None:
        """Return the next attempt for a group, once there is one; None: it is to leave. Called by its rank 0.

        The trial is the group's once something is heard of it: the caller may have died while it waited. A group that
        asks while it has a trial did not get the answer, since the coordinator died: it gets the same trial again.
        """
        slot = self._slots[slot_number]
        if not slot.is_busy:
            self._scheduler.times.turn_to(slot_number, generation, WAITING)

        def has_news() -> bool:
            return not slot.is_current(generation, incarnation) or (slot.run is not None and slot.run.spec is not None)

        await self._scheduler.until(has_news)
        run = slot.run
        if run is None or run.spec is None or not slot.is_current(generation, incarnation):
            return None
        if not slot.is_busy:
            self._scheduler.times.turn_to(slot_number, generation, "trial", run.trial.id)
            slot.begin()
            self._recorder.trial(run.trial)
        spec = run.spec
        attempt = Attempt(slot.taken, run.trial.id, run.trial.attempts, spec.worker_spec, spec.timeout_seconds)
        await self._scheduler.settled()  # an attempt must not be counted twice
        return attempt

    async def begin(self, trial_id: str, attempt: int, device: str) -> None:
        """The workers are about to train on such a device."""
        run = self._running(trial_id, attempt)
        if run is not None:
            run.write(lambda coordinator: coordinator.begin(device))

    async def metrics(self, trial_id: str, attempt: int, readings: Sequence[MetricReading]) -> bool:
        """Record what was measured, in the order of the steps; returns whether all of it is safe."""
        run = self._running(trial_id, attempt)
        if run is None:
            return True
        for reading in readings:
            run.measure(reading.step, reading.values)
            self._scheduler.times.measure(trial_id, attempt, reading)
        is_safe = run.write(lambda coordinator: coordinator.metrics(readings))
        if not self._scheduler.over:
            self._scheduler.check_objectives(run.trial)
            if self._scheduler.over:
                await self._scheduler.notify()
        return await is_safe

    async def progress(self, trial_id: str, attempt: int, step: int, samples_per_second: float) -> bool:
        """A sign of life; returns whether the trial is to save its state and stop."""
        run = self._running(trial_id, attempt)
        if run is None:
            return True
        run.measure(step, {}, samples_per_second)
        self._scheduler.stop_overdue(run)
        if run.stopping is not None:
            await self._scheduler.settled()
        return run.stopping is not None

    async def event(self, trial_id: str, attempt: int, kind: str, details: dict[str, Any]) -> None:
        """Something worth telling the watcher."""
        run = self._running(trial_id, attempt)
        if run is None:
            return
        if kind in OF_THE_RECORD:
            run.write(lambda coordinator: coordinator.event(kind, details))
        elif kind == "plan":
            run.trial = replace(run.trial, total_steps=details["total_steps"])
        elif kind == "checkpoint":
            run.trial = replace(run.trial, checkpoint=details["path"])
        elif kind in ("warning", "resumed"):
            self._recorder.report_event(kind, **{**details, "trial": trial_id})

    async def secure(self, trial_id: str, attempt: int, end: int | None = None) -> tuple[int, bool]:
        """Have the trial's record put into the sweep's store soon, see `RunCoordinator.secure`."""
        run = self._running(trial_id, attempt)
        return (0, False) if run is None else await run.write(lambda coordinator: coordinator.secure(end))

    async def may_commit(self, trial_id: str, attempt: int) -> bool:
        """Return True if the trial still belongs to the group that asks, so that it may put a checkpoint in place."""
        return self._running(trial_id, attempt) is not None

    async def rung(self, trial_id: str, attempt: int, values: dict[str, float]) -> bool | None:
        """The trial stands at a rung, its state saved; returns, once it is decided, whether it is to continue.

        None: it is to stop, and to ask again when it is taken up again; nothing was decided about the rung.
        """
        run = self._running(trial_id, attempt)
        if run is None:
            return None
        if run.answered_step is not None and run.answered_step >= values["step"]:
            # the group died before it heard the answer
            return run.stopping is None or run.stopping[0] == "pending"
        if run.rung is None or run.rung["step"] != values["step"]:
            run.wait_at_rung(values)
            self._recorder.trial(run.trial)  # with its newest checkpoint, which another trial may take over
            self._recorder.rung(trial_id, values)
        await self._scheduler.notify()
        await self._scheduler.until(lambda: run.rung is None or run.stopping is not None)
        if self._running(trial_id, attempt) is None:
            return None
        if run.stopping is not None:
            if run.stopping[0] == "pending" or (run.stopping[0] == "paused" and not run.is_reported):
                return None
            self._recorder.answer(trial_id)
        may_continue = run.stopping is None
        await self._scheduler.settled()
        return may_continue

    async def finish(self, trial_id: str, attempt: int, ending: Mapping[str, Any]) -> bool:
        """Take the end of a trial's training, from rank 0 or from the rank that failed; the first report counts.

        Args:
            ending: with what could not be recorded before, see `FinalReport`.

        Returns:
            True if the trial has ended for good.
        """
        await self._finish(trial_id, attempt, ending)
        return self._recorder.has_ended(trial_id)

    async def _finish(self, trial_id: str, attempt: int, ending: Mapping[str, Any]) -> None:
        run = self._running(trial_id, attempt)
        if run is None:
            return
        words = FinalReport.read(ending)
        if words.unrecorded and not await self.metrics(trial_id, attempt, words.unrecorded):
            message = f"its last metrics are not recorded; {HINT_OF_UNRECORDED}"
            self._recorder.report_event("warning", code="metrics-not-recorded", trial=trial_id, message=message)
        if self._running(trial_id, attempt) is None:  # another rank has reported it meanwhile
            return
        run.write(lambda coordinator: coordinator.note_lost(words.lost))
        if (slot := self._scheduler.slot_of(run)) is not None:
            self._scheduler.times.turn_to(slot.number, slot.generation, WAITING)
        if self._recorder.store_of(trial_id) is not None and (reason := _store_fault(words.ending)):
            await self._scheduler.found_store_fault(run, reason)
            await self._scheduler.settled()
            return
        run.conclude(words.ending)
        self._scheduler.settle(run)
        if run.trial.state == "pending" and words.ending["status"] == "failed":
            await self._scheduler.found_disk_full(trial_id, run.trial.reason)
        await self._scheduler.notify()
        await self._scheduler.settled()

    # --- within --------------------------------------------------------------------------------------------------

    def _running(self, trial_id: str, attempt: int) -> RunningTrial | None:
        """The trial, if the group that speaks of it is the one that has it."""
        run = self._scheduler.runs.get(trial_id)
        if run is None or run.begun is None or run.trial.attempts != attempt:
            return None
        if run.state == "taken" and (slot := self._scheduler.slot_of(run)) is not None:
            run.confirm()
            self._failures.is_at_work(slot)
        return run


def _store_fault(ending: Mapping[str, Any]) -> str:
    """Return why a trial failed if its store is the reason; else nothing. A full disk of the node does not count."""
    failure = ending.get("failure", {}) if ending["status"] == "failed" else {}
    if failure.get("kind") == "full_disk":
        return ""
    return str(failure["reason"]) if is_store_code(failure.get("problem_code", "")) else ""
