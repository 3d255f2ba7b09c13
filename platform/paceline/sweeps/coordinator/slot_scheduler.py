"""Assigns trials to slots: a trial waits for a slot, takes it, releases it, and ends."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.full_disk import is_full_disk
from paceline.sweeps.coordinator.running_trial import RunningTrial, TrialCoordinator
from paceline.sweeps.coordinator.slot import Slot, choose_slot
from paceline.sweeps.coordinator.sweep_recorder import SweepRecorder
from paceline.sweeps.coordinator.sweep_rules import DiskRoom, SweepRules
from paceline.sweeps.coordinator.write_queue import WriteQueue
from paceline.sweeps.messages import TrialSpec
from paceline.sweeps.restart_state import RestartState, SavedAttempt, SavedStates
from paceline.sweeps.states import ENDED, TrialState
from paceline.sweeps.sweep_costs import GroupTimes
from paceline.sweeps.trial import Trial
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import note_stored, stored_bytes

TROUBLE_SECONDS = 60.0
"""Least time between two reports about trouble with a trial's record."""


class SlotScheduler:
    """The trials of a sweep that continue, and their slots.

    Args:
        num_trials: how many trials there will be at the most; None: nobody knows.
    """

    def __init__(self, rules: SweepRules, recorder: SweepRecorder, num_trials: int | None) -> None:
        self.rules, self.recorder = rules, recorder
        self.runs: dict[str, RunningTrial] = {}
        self.times = GroupTimes(rules.goal)
        self.slots = [Slot(number, times=self.times) for number in range(rules.slots)]
        self.over = next(filter(None, map(rules.target_reached, recorder.trials.values())), "")
        """The reason why the sweep ends before its last trial; empty while it continues."""
        self.fault = ""
        """The reason why the sweep cannot continue; empty when it can."""
        self.disk = DiskRoom(recorder.folder)
        self._num_trials = num_trials
        self._saved = SavedStates()
        if recorder.recovered is not None:
            self._recover(recorder.recovered)
        self._openings: dict[str, asyncio.Future[RunningTrial | None]] = {}
        """By trial."""
        self._last_opening: asyncio.Future[RunningTrial | None] | None = None
        self._changed = asyncio.Condition()

    async def open(self, spec: TrialSpec) -> RunningTrial | None:
        """Open the record of a trial: a new one, or one that an earlier launch has left unfinished. None when that
        cannot be written down; a later launch runs it."""
        trial_id = spec.planned.id
        if trial_id not in self._openings:  # Tune may ask again before the first time is over
            self._last_opening = asyncio.ensure_future(self._open_in_turn(spec, self._last_opening))
            self._openings[trial_id] = self._last_opening
            self._last_opening.add_done_callback(lambda _: self._openings.pop(trial_id))
        return await asyncio.shield(self._openings[trial_id])

    async def all_opened(self) -> None:
        """Wait for the trials whose records are being opened."""
        if self._openings:
            await asyncio.wait(list(self._openings.values()))

    async def _open_in_turn(
        self, spec: TrialSpec, earlier: "asyncio.Future[RunningTrial | None] | None"
    ) -> RunningTrial | None:
        """Records are opened side by side, but slots are assigned in the order in which Tune has asked for them."""
        run = await self._open(spec)
        if earlier is not None:
            await asyncio.wait([earlier])
        return run

    async def _open(self, spec: TrialSpec) -> RunningTrial | None:
        planned = spec.planned
        known = self.recorder.trials.get(planned.id) or Trial(planned.id, dict(planned.params))
        trial = replace(known, params=dict(planned.params), total_steps=spec.total_steps, reason="")
        trial = replace(trial, mlflow_run_id="")  # its record is open again

        def open_record() -> TrialCoordinator:
            tracking = Path(spec.folder) / "tracking"
            if spec.store is not None and stored_bytes(tracking) is None:
                note_stored(tracking, 0)  # or MLflow would be sent what the store does not have
            coordinator = TrialCoordinator(
                tracking,
                spec.record,
                self._listener(trial.id),
                store=spec.store,
                is_new=not known.attempts,
                uploads=self.recorder.uploads,
            )
            coordinator.note_axes(0, trial.params)
            return coordinator

        try:
            coordinator = await asyncio.get_running_loop().run_in_executor(self.recorder.threads, open_record)
        except OSError as error:
            self.recorder.note(replace(trial, state="pending", reason=f"it cannot be recorded: {error}"))
            message = f"trial {trial.id} did not begin, it cannot be recorded: {error}"
            self.recorder.report_event("warning", code="trial-not-recorded", message=message)
            if is_full_disk(error):
                await self.found_disk_full(trial.id, f"it cannot be recorded: {error}")
            return None
        if self.recorder.has_ended(trial.id):  # Tune has given it up meanwhile
            return None
        run = RunningTrial(
            trial.id,
            needs_fresh_processes=spec.needs_fresh_processes or self.rules.fresh_processes,
            spec=spec,
            trial=trial,
            coordinator=coordinator,
            writes=WriteQueue(self.recorder.threads),
            reached=self.rung_of(trial.id),
        )
        self.runs[trial.id] = run
        self.recorder.trial(trial)
        return run

    def _listener(self, trial_id: str) -> Callable[[str, dict[str, Any]], None]:
        told = -TROUBLE_SECONDS

        def listen(kind: str, details: dict[str, Any]) -> None:
            nonlocal told
            if kind == "warning" and time.monotonic() - told >= TROUBLE_SECONDS:
                told = time.monotonic()
                self.recorder.report_event(kind, **details, trial=trial_id)

        return listen

    def _recover(self, launch: RestartState) -> None:
        """Take over the groups and the trials of a coordinator that has died."""
        for saved in launch.slots.values():
            self.slots[saved.number].restore(saved)
        for number, generation, worker in launch.workers:
            self.slots[number].workers.setdefault(generation, []).append(worker)
        self.times.replay(launch.group_times)
        self.over, self.fault = launch.over or self.over, launch.fault
        for trial in list(self.recorder.trials.values()):
            attempt = launch.under_way(trial.id)
            if attempt is not None and trial.state not in ENDED:
                self._recover_run(attempt, trial)
        adopted = f"{len(self.runs)} trial{'' if len(self.runs) == 1 else 's'} under way"
        message = f"the process that coordinates the sweep died and was started again: {adopted}, none begins again"
        self.recorder.report_event("warning", code="coordinator-restarted", message=message, trials=len(self.runs))

    def _recover_run(self, attempt: SavedAttempt, trial: Trial) -> None:
        folder = self.recorder.tracking_of(trial.id)
        record, store = RunRecord.load(folder, self.recorder.uri), self.recorder.store_of(trial.id)
        coordinator = TrialCoordinator(
            folder, record, self._listener(trial.id), store=store, uploads=self.recorder.uploads
        )
        run = RunningTrial(
            **vars(attempt),
            spec=None,
            trial=trial,
            coordinator=coordinator,
            writes=WriteQueue(self.recorder.threads),
            reached=self.rung_of(trial.id),
            stopping_since=time.monotonic(),
            visit=None,
        )
        self.runs[trial.id] = run
        if run.slot is not None:
            self.slots[run.slot].adopt(run)

    def save_changes(self) -> None:
        """Have what has changed of slots and trials written down, for a coordinator that is started again."""
        changes = self._saved.changes(self.slots, self.runs.values(), self.over, self.fault)
        self.recorder.save([*self.times.new_entries(), *changes], self._saved.clear)

    async def settled(self) -> None:
        """Wait until all that has happened until now would be known to a coordinator that is started again."""
        self.save_changes()
        await self.recorder.durable()

    @property
    def open_slots(self) -> list[Slot]:
        """The slots that may have a group."""
        return [slot for slot in self.slots if slot.state != "retired"]

    def slot_of(self, run: RunningTrial) -> Slot | None:
        """The slot that a trial has, if any."""
        return None if run.slot is None else self.slots[run.slot]

    def rung_of(self, trial_id: str) -> dict[str, float]:
        """The values at the rung that a trial reached last; none if it has reached none."""
        run = self.runs.get(trial_id)
        return run.reached if run is not None else self.recorder.last_rungs.get(trial_id, {})

    async def assign(self, run: RunningTrial, call: int) -> None:
        """Find a slot for a trial, and see to it that there is a group that suits; none if it is not to begin."""
        spec = run.spec
        assert spec is not None  # the call that asks for a slot has brought it
        fresh = run.needs_fresh_processes

        def is_off() -> bool:
            return bool(self.over) or run.has_ended or run.calls != call

        await self.until(lambda: is_off() or any(slot.is_free for slot in self.slots))
        slot = choose_slot(self.slots, spec.shape, fresh)
        if is_off() or slot is None:
            return
        if not slot.suits(spec.shape, fresh):
            slot.renew(spec.shape)
        slot.give_to(run)
        self.recorder.trial(run.trial)
        await self.notify()

    async def vacate(self, run: RunningTrial) -> None:
        """Have a trial's workers save its state and release it."""
        assignment = run.assignments
        if run.state != "waiting":
            if run.stopping is None:
                run.stop("paused", "")
            self.stop_if_idle(run)
        await self.notify()
        await self.until(lambda: run.slot is None or run.assignments != assignment)

    def stop_overdue(self, run: RunningTrial) -> bool:
        """Stop a trial if it has had its time; returns whether it had."""
        limit = self.rules.trial_seconds
        if limit is None or run.seconds <= limit or run.stopping is not None:
            return False
        run.stop("pruned", f"stopped after {run.seconds:.0f} s, as sweep.stop.trial_seconds says")
        return True

    def stop_if_idle(self, run: RunningTrial) -> None:
        """Stop a trial that is to stop now, if no group is at work on it."""
        if run.stopping is None or run.begun is not None:
            return
        run.end(*run.stopping)
        self.settle(run)

    def end(self, run: RunningTrial, state: TrialState, reason: str) -> None:
        """End a trial without a report from its workers, and the group that trains it, since it may hang."""
        slot = self.slot_of(run) if run.begun is not None else None
        run.end(state, reason)
        self.settle(run)
        if slot is not None and slot.shape is not None:
            slot.renew(None)

    def settle(self, run: RunningTrial) -> None:
        """A trial's workers have released it: write down how it stands, and free its slot."""
        self.release(run)
        if run.trial.state == "finished":
            self.disk.was_found()
        if run.has_ended:
            self._forget(run)
            self.recorder.end(run)
            self.check_objectives(run.trial)
            self.over = self.over or self.rules.target_reached(run.trial)
            if self.rules.target_reached(run.trial):
                self._mark_all("pruned", self.over)
        else:
            self.recorder.trial(run.trial)
        self.release_surplus_groups()

    def check_objectives(self, trial: Trial) -> None:
        """End the sweep if its metrics are none of those that its trials report: it could not tell which is best."""
        if reason := self.rules.never_reported(trial, self.recorder.metric_names):
            self.fault = self.fault or reason
            self.over = self.over or reason
            self._mark_all("pending", reason)

    async def found_disk_full(self, trial_id: str, reason: str) -> None:
        """A trial is left for a later launch, since a disk is full. End the sweep if that disk stays full: more trials
        would only be trained in vain."""
        message = f"left for the same command to continue, since a disk is full: {reason}"
        self.recorder.report_event("warning", code="disk-full", trial=trial_id, message=message)
        look = partial(self.disk.was_lacking, reason)  # writes to the disk, which may be slow
        if await asyncio.get_running_loop().run_in_executor(self.recorder.threads, look) and not self.over:
            self.fault = self.fault or reason
            self.over = reason
            self._mark_all("pending", reason)
            self.release_surplus_groups()

    async def found_store_fault(self, run: RunningTrial | None, reason: str) -> None:
        """The sweep's object store cannot be used: end the sweep. A later launch resumes all trials from what they have
        saved.

        Args:
            run: the trial that has found that out, if it is under way.
        """
        if run is not None and not run.has_ended:
            self.end(run, "pending", reason)
        self.fault = self.fault or reason
        await self.stop_all(reason)

    def _forget(self, run: RunningTrial) -> None:
        """Keep of a trial that has ended only what is still asked for."""
        self.recorder.last_rungs[run.trial.id] = run.reached
        self._saved.forget(run.trial.id)
        self.runs.pop(run.trial.id, None)

    def release(self, run: RunningTrial) -> None:
        """Free a trial's slot."""
        slot = self.slot_of(run)
        run.release()
        if slot is None:
            return
        slot.release()
        if run.needs_fresh_processes:
            slot.renew(None)

    def release_surplus_groups(self) -> None:
        """Let the groups go that nobody is going to need."""
        free = [slot for slot in self.slots if slot.run is None and slot.shape is not None]
        surplus = len(free) - self._still_to_come()
        for slot in free[:surplus] if surplus > 0 else []:
            slot.renew(None)

    def _still_to_come(self) -> int:
        """Return the number of trials that may yet need a slot."""
        if self.over:
            return 0
        if self._num_trials is None:
            return len(self.open_slots)
        occupied = sum(slot.run is not None for slot in self.slots)
        return max(0, self._num_trials - self.recorder.endings.total() - occupied)

    async def stop_all(self, reason: str) -> None:
        """The sweep is over: let nothing begin, and what is running save its state and stop."""
        self.over = self.over or reason
        self._mark_all("pending", reason)
        self.release_surplus_groups()
        await self.notify()

    def _mark_all(self, state: TrialState, reason: str) -> None:
        """Stop all trials; those that have not begun are left for a later launch."""
        for run in list(self.runs.values()):
            if run.stopping is None:
                run.stop(state if run.trial.attempts else "pending", reason)
                self.stop_if_idle(run)

    async def notify(self) -> None:
        """Something has changed: let everybody who waits look."""
        self.save_changes()
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at whenever something has changed."""
        async with self._changed:
            await self._changed.wait_for(condition)
