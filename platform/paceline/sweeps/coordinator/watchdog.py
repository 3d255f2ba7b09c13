"""Ends trials whose workers give no sign of life."""

import asyncio
import time

from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.slot_scheduler import SlotScheduler
from paceline.sweeps.trial import TrialState

LOOK_SECONDS = 1.0
SAVE_SECONDS = 300.0
"""How long workers that are to stop may take for it."""
OVERDUE_SECONDS = 60.0
"""How long a trial may continue after its `sweep.stop.trial_seconds`."""


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
            _end(scheduler, run, state, f"{reason}; its workers did not stop within {SAVE_SECONDS:.0f} s")
            return True
        return False
    limit = scheduler.rules.trial_seconds
    if limit is not None and min(run.seconds - limit, now - run.begun) > OVERDUE_SECONDS:
        told = f"stopped after {run.seconds:.0f} s, as sweep.stop.trial_seconds says; its workers did not answer"
        _end(scheduler, run, "pruned", told)
        return True
    return False


def _end(scheduler: SlotScheduler, run: RunningTrial, state: TrialState, reason: str) -> None:
    slot = scheduler.slot_of(run)
    assert slot is not None
    slot.renew(None)
    scheduler.end(run, state, reason.removeprefix("; "))
