"""Ends trials whose workers give no sign of life."""

import asyncio
import time

from paceline.sweeps.desk.hall import Hall
from paceline.sweeps.desk.trial_run import TrialRun
from paceline.sweeps.trials import TrialState

LOOK_SECONDS = 1.0
SAVE_SECONDS = 300.0
"""How long workers that are to stop may take for it."""
OVERDUE_SECONDS = 60.0
"""How long a trial may continue after its `sweep.stop.trial_seconds`."""


async def watch(hall: Hall) -> None:
    """Look after all trials under way, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        changes = [_look_after(hall, seat.run) for seat in hall.seats if seat.run is not None]
        if any(changes):
            await hall.notify()


def _look_after(hall: Hall, run: TrialRun) -> bool:
    """Returns whether something has changed."""
    now = time.monotonic()
    if run.begun is None:
        return False
    if run.rung is not None and hall.stop_overdue(run):
        return True  # its workers hear of it now: they wait for an answer
    if run.stopping is not None:
        if now - run.stopping_since > SAVE_SECONDS:
            state, reason = run.stopping
            _end(hall, run, state, f"{reason}; its workers did not stop within {SAVE_SECONDS:.0f} s")
            return True
        return False
    limit = hall.rules.trial_seconds
    if limit is not None and min(run.seconds - limit, now - run.begun) > OVERDUE_SECONDS:
        told = f"stopped after {run.seconds:.0f} s, as sweep.stop.trial_seconds says; its workers did not answer"
        _end(hall, run, "pruned", told)
        return True
    return False


def _end(hall: Hall, run: TrialRun, state: TrialState, reason: str) -> None:
    seat = hall.seat_of(run)
    assert seat is not None
    seat.renew(None)
    hall.end(run, state, reason.removeprefix("; "))
