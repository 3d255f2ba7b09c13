"""Worker groups that die, hang or do not start: consequences for their trials and slots."""

import asyncio
import time

from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.slot import Slot
from paceline.sweeps.coordinator.slot_scheduler import SlotScheduler

MAX_LAUNCH_FAILURES = 3
"""Failed starts of worker groups in a row after which the sweep gives up, when no group is at work."""
MAX_IDLE_STARTS = 3
"""Starts of a group in a row that may end before it begins a trial."""
LOOK_SECONDS = 1.0
"""Time between two looks for trials whose workers give no sign of life."""
SAVE_SECONDS = 300.0
"""Time that workers may take to stop."""
OVERDUE_SECONDS = 60.0
"""Time that a trial may continue after its `sweep.stop.trial_seconds`."""


class GroupFailures:
    """Counts what goes wrong with groups."""

    def __init__(self, scheduler: SlotScheduler) -> None:
        self._scheduler = scheduler
        self._launch_failures = 0

    async def has_started(self, slot: Slot) -> bool:
        """A group was started, or started again; returns whether it is to stay."""
        if slot.idle_starts >= MAX_IDLE_STARTS:
            await self.has_failed(slot, f"the worker group died {MAX_IDLE_STARTS} times before it began a trial")
            return False
        slot.incarnation += 1
        slot.idle_starts += 1
        slot.has_lived = True
        self._interrupt(slot, "")
        await self._scheduler.notify()
        return True

    def is_at_work(self, slot: Slot) -> None:
        """A group was heard of while it is at work on a trial."""
        slot.idle_starts = 0
        slot.was_used = True
        self._launch_failures = 0
        if slot.run is not None:
            slot.run.displacements = 0

    async def has_failed(self, slot: Slot, reason: str) -> None:
        """A group could not be started, or was given up. Its trial gets another group, unless that was once too
        often."""
        was_used = slot.was_used
        self._interrupt(slot, reason)
        is_the_trials = not was_used and slot.run is not None and slot.run.displacements > 0
        if is_the_trials:
            self._give_up_trial(slot, reason)
        if was_used:
            slot.renew(slot.shape)
        elif not any(other.has_lived for other in self._scheduler.open_slots if other is not slot):
            await self._try_again(slot, reason)
        elif not is_the_trials:
            self._retire(slot, reason)
        self._scheduler.release_surplus_groups()
        await self._scheduler.notify()

    def _give_up_trial(self, slot: Slot, reason: str) -> None:
        """A trial has cost one slot already: that it gets no group here either must not cost another one."""
        assert slot.run is not None
        self._scheduler.end(slot.run, "failed", reason)
        slot.renew(None)

    def _retire(self, slot: Slot, reason: str) -> None:
        left = len(self._scheduler.open_slots) - 1
        groups = "worker group" if left == 1 else "worker groups"
        message = f"the sweep continues with {left} {groups}, one more failed: {reason}"
        self._scheduler.recorder.report_event("warning", code="slot-lost", message=message, slots_left=left)
        run = slot.release()
        slot.retire()
        if run is not None:
            run.displace()
            self._scheduler.recorder.trial(run.trial)
            self._scheduler.stop_if_idle(run)

    async def _try_again(self, slot: Slot, reason: str) -> None:
        self._launch_failures += 1
        slot.renew(slot.shape)
        if self._launch_failures >= MAX_LAUNCH_FAILURES:
            self._scheduler.fault = self._scheduler.fault or reason
            await self._scheduler.stop_all(reason)

    def _interrupt(self, slot: Slot, reason: str) -> None:
        """The processes are gone that were at work on this slot's trial, if any."""
        run = slot.run
        if run is None or not slot.is_busy:
            return
        was_at_work = run.state == "at_work"
        slot.lose_group()
        run.failures += was_at_work
        is_once_too_often = run.failures > self._scheduler.rules.max_failures
        if was_at_work and not is_once_too_often:
            self._scheduler.recorder.report_event("restarted", trial=run.trial.id, failures=run.failures)
        self._scheduler.recorder.trial(run.trial)
        if is_once_too_often:
            times = "once" if run.failures == 1 else f"{run.failures} times"
            self._scheduler.end(run, "failed", reason or f"its workers died {times}")
        else:
            self._scheduler.stop_if_idle(run)


async def watch(scheduler: SlotScheduler) -> None:
    """Look after all trials under way, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        changes = [_look_after(scheduler, slot.run) for slot in scheduler.slots if slot.run is not None]
        if any(changes):
            await scheduler.notify()


def _look_after(scheduler: SlotScheduler, run: RunningTrial) -> bool:
    """Returns whether something has changed."""
    now = time.monotonic()
    if run.begun is None:
        return False
    if run.rung is not None and scheduler.stop_overdue(run):
        return True  # its workers hear of it now: they wait for an answer
    if run.stopping is not None:
        if now - run.stopping_since > SAVE_SECONDS:
            state, reason = run.stopping
            told = f"{reason}; its workers did not stop within {SAVE_SECONDS:.0f} s"
            scheduler.end(run, state, told.removeprefix("; "))
            return True
        return False
    limit = scheduler.rules.trial_seconds
    if limit is not None and min(run.seconds - limit, now - run.begun) > OVERDUE_SECONDS:
        told = f"stopped after {run.seconds:.0f} s, as sweep.stop.trial_seconds says; its workers did not answer"
        scheduler.end(run, "pruned", told)
        return True
    return False
