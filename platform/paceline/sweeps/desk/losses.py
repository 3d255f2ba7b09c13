"""Worker groups of a sweep that die, or do not start: what becomes of their trials and of their seats."""

from paceline.sweeps.desk.hall import Hall
from paceline.sweeps.desk.seats import Seat

MAX_LAUNCH_FAILURES = 3
"""How often in a row worker groups may fail to start before the sweep gives up, when there is none at work."""
MAX_IDLE_STARTS = 3
"""How often in a row a group may be started again without getting to a trial."""


class Losses:
    """Counts what goes wrong with groups."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._launch_failures = 0

    async def has_started(self, seat: Seat) -> bool:
        """A group was started, or started again; returns whether it is to stay."""
        if seat.idle_starts >= MAX_IDLE_STARTS:
            await self.has_failed(seat, f"the worker group died {MAX_IDLE_STARTS} times before it began a trial")
            return False
        seat.incarnation += 1
        seat.idle_starts += 1
        seat.has_lived = True
        self._interrupt(seat, "")
        await self._hall.notify()
        return True

    def is_at_work(self, seat: Seat) -> None:
        """A group was heard of while it is at work on a trial."""
        seat.idle_starts = 0
        seat.was_used = True
        self._launch_failures = 0
        if seat.run is not None:
            seat.run.displacements = 0

    async def has_failed(self, seat: Seat, reason: str) -> None:
        """A group could not be started, or was given up. Its trial gets another group, unless that was once too
        often."""
        was_used = seat.was_used
        self._interrupt(seat, reason)
        is_the_trials = not was_used and seat.run is not None and seat.run.displacements > 0
        if is_the_trials:
            self._give_up_trial(seat, reason)
        if was_used:
            seat.renew(seat.shape)
        elif not any(other.has_lived for other in self._hall.open_seats if other is not seat):
            await self._try_again(seat, reason)
        elif not is_the_trials:
            self._retire(seat, reason)
        self._hall.hand_back()
        await self._hall.notify()

    def _give_up_trial(self, seat: Seat, reason: str) -> None:
        """A trial has cost one seat already: that it gets no group here either must not cost another one."""
        assert seat.run is not None
        self._hall.end(seat.run, "failed", reason)
        seat.renew(None)

    def _retire(self, seat: Seat, reason: str) -> None:
        left = len(self._hall.open_seats) - 1
        groups = "worker group" if left == 1 else "worker groups"
        message = f"the sweep continues with {left} {groups}, one more failed: {reason}"
        self._hall.books.tell("warning", code="slot-lost", message=message, slots_left=left)
        run, seat.run = seat.run, None
        seat.retire()
        if run is not None:
            run.displace()
            self._hall.books.trial(run.trial)
            self._hall.let_go(run)

    async def _try_again(self, seat: Seat, reason: str) -> None:
        self._launch_failures += 1
        seat.renew(seat.shape)
        if self._launch_failures >= MAX_LAUNCH_FAILURES:
            self._hall.fault = self._hall.fault or reason
            await self._hall.stop_all(reason)

    def _interrupt(self, seat: Seat, reason: str) -> None:
        """The processes are gone that were at work on this seat's trial, if any."""
        run = seat.run
        if run is None or run.begun is None:
            return
        was_at_work = run.is_confirmed
        run.stop_clock()
        run.failures += was_at_work
        is_once_too_often = run.failures > self._hall.rules.max_failures
        if was_at_work and not is_once_too_often:
            self._hall.books.tell("restarted", trial=run.trial.id, failures=run.failures)
        self._hall.books.trial(run.trial)
        if is_once_too_often:
            times = "once" if run.failures == 1 else f"{run.failures} times"
            self._hall.end(run, "failed", reason or f"its workers died {times}")
        else:
            self._hall.let_go(run)
