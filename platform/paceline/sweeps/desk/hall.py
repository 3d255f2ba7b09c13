"""Who has which seat: trials wait for one, take it, give it up, and end. What the desk's messages come to."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.sweeps.desk.books import Books
from paceline.sweeps.desk.rules import Rules
from paceline.sweeps.desk.seats import Seat, choose_seat
from paceline.sweeps.desk.timing import GroupTimes
from paceline.sweeps.desk.trial_desk import TrialDesk
from paceline.sweeps.desk.trial_run import TrialRun
from paceline.sweeps.trials import Trial, TrialState
from paceline.sweeps.work import Order

TROUBLE_SECONDS = 60.0
"""How often the trouble that a trial's record has is reported, at the most."""


class Hall:
    """The trials of a sweep that continue, and their seats.

    Args:
        points: how many trials there will be at the most; None: nobody knows.
    """

    def __init__(self, rules: Rules, books: Books, points: int | None) -> None:
        self.rules, self.books = rules, books
        self.runs: dict[str, TrialRun] = {}
        self.times = GroupTimes(rules.goal)
        self.seats = [Seat(number, times=self.times) for number in range(rules.seats)]
        self.over = next(filter(None, map(rules.target_reached, books.trials.values())), "")
        """Why the sweep ends before its last trial; empty while it continues."""
        self.fault = ""
        """Why the sweep cannot continue; empty when it can."""
        self._points = points
        self._changed = asyncio.Condition()

    def open(self, order: Order) -> TrialRun | None:
        """Take a trial into the books: a new one, or one that an earlier launch has left unfinished. None when that
        cannot be written down; a later launch runs it."""
        point = order.point
        known = self.books.trials.get(point.id) or Trial(point.id, dict(point.overrides))
        trial = replace(known, overrides=dict(point.overrides), total_steps=order.total_steps, reason="")
        trial = replace(trial, mlflow_run_id="")  # its record is open again
        try:
            desk = TrialDesk(Path(order.folder) / "tracking", order.record, self._listener(trial.id))
            desk.note_axes(0, trial.overrides)
            run = TrialRun(order, trial, desk)
        except OSError as error:
            self.books.note(replace(trial, state="pending", reason=f"it cannot be recorded: {error}"))
            message = f"trial {trial.id} did not begin, it cannot be recorded: {error}"
            self.books.tell("warning", code="trial-not-recorded", message=message)
            return None
        run.reached = self.rung_of(trial.id)
        self.runs[trial.id] = run
        self.books.trial(trial)
        return run

    def _listener(self, trial_id: str) -> Callable[[str, dict[str, Any]], None]:
        told = -TROUBLE_SECONDS

        def listen(kind: str, details: dict[str, Any]) -> None:
            nonlocal told
            if kind == "warning" and time.monotonic() - told >= TROUBLE_SECONDS:
                told = time.monotonic()
                self.books.tell(kind, **details, trial=trial_id)

        return listen

    @property
    def open_seats(self) -> list[Seat]:
        """The seats that may have a group."""
        return [seat for seat in self.seats if not seat.is_retired]

    def seat_of(self, run: TrialRun) -> Seat | None:
        """The seat that a trial has, if any."""
        return None if run.seat is None else self.seats[run.seat]

    def rung_of(self, trial_id: str) -> dict[str, float]:
        """The values at the rung that a trial reached last; none if it has reached none."""
        run = self.runs.get(trial_id)
        return run.reached if run is not None else self.books.last_rungs.get(trial_id, {})

    async def seat(self, run: TrialRun, call: int) -> None:
        """Find a seat for a trial, and see to it that there is a group that suits; none if it is not to begin."""
        order = run.order
        fresh = order.needs_fresh_processes or self.rules.fresh_processes

        def is_off() -> bool:
            return bool(self.over) or run.has_ended or run.calls != call

        await self.until(lambda: is_off() or any(seat.is_free for seat in self.seats))
        seat = choose_seat(self.seats, order.shape, fresh)
        if is_off() or seat is None:
            return
        if not seat.suits(order.shape, fresh):
            seat.renew(order.shape)
        seat.give_to(run)
        self.books.trial(run.trial)
        await self.notify()

    async def vacate(self, run: TrialRun) -> None:
        """Have a trial's workers save its state and release it."""
        seating = run.seatings
        if run.seat is not None or run.is_displaced:
            if run.stopping is None:
                run.stop("paused", "")
            self.let_go(run)
        await self.notify()
        await self.until(lambda: run.seat is None or run.seatings != seating)

    def stop_overdue(self, run: TrialRun) -> bool:
        """Stop a trial if it has had its time; returns whether it had."""
        limit = self.rules.trial_seconds
        if limit is None or run.seconds <= limit or run.stopping is not None:
            return False
        run.stop("pruned", f"stopped after {run.seconds:.0f} s, as sweep.stop.trial_seconds says")
        return True

    def let_go(self, run: TrialRun) -> None:
        """Stop a trial that is to stop now, if no group is at work on it."""
        if run.stopping is None or run.begun is not None:
            return
        run.end(*run.stopping)
        self.rest_or_close(run)

    def end(self, run: TrialRun, state: TrialState, reason: str) -> None:
        """End a trial without a word of its workers."""
        run.end(state, reason)
        self.rest_or_close(run)

    def rest_or_close(self, run: TrialRun) -> None:
        """A trial's workers have released it: write down how it stands, and free its seat."""
        self.release(run)
        if run.has_ended:
            self.books.end(run.trial, run.desk, lambda: self._forget(run))
            self.check_objectives(run.trial)
            self.over = self.over or self.rules.target_reached(run.trial)
            if self.rules.target_reached(run.trial):
                self._mark_all("pruned", self.over)
        else:
            self.books.trial(run.trial)
        self.hand_back()

    def check_objectives(self, trial: Trial) -> None:
        """End the sweep if its metrics are none of those that its trials report: it could not tell which is best."""
        if reason := self.rules.never_reported(trial, self.books.trials.values()):
            self.fault = self.fault or reason
            self.over = self.over or reason
            self._mark_all("pending", reason)

    def _forget(self, run: TrialRun) -> None:
        """Keep of a trial that has ended only what is still asked for."""
        self.books.last_rungs[run.trial.id] = run.reached
        self.runs.pop(run.trial.id, None)

    def release(self, run: TrialRun) -> None:
        """Free a trial's seat."""
        seat, run.seat = self.seat_of(run), None
        if seat is None:
            return
        seat.run = None
        if self.rules.fresh_processes or run.order.needs_fresh_processes:
            seat.renew(None)

    def hand_back(self) -> None:
        """Let the groups go that nobody is going to need."""
        free = [seat for seat in self.seats if seat.run is None and seat.shape is not None]
        surplus = len(free) - self._still_to_come()
        for seat in free[:surplus] if surplus > 0 else []:
            seat.renew(None)

    def _still_to_come(self) -> int:
        """How many trials may yet need a seat."""
        if self.over:
            return 0
        if self._points is None:
            return len(self.open_seats)
        seated = sum(seat.run is not None for seat in self.seats)
        return max(0, self._points - self.books.endings.total() - seated)

    async def stop_all(self, reason: str) -> None:
        """The sweep is over: let nothing begin, and what is running save its state and stop."""
        self.over = self.over or reason
        self._mark_all("pending", reason)
        self.hand_back()
        await self.notify()

    def _mark_all(self, state: TrialState, reason: str) -> None:
        """Stop all trials; those that have not begun are left for a later launch."""
        for run in list(self.runs.values()):
            if not run.has_ended and run.stopping is None:
                run.stop(state if run.trial.attempts else "pending", reason)
                self.let_go(run)

    async def notify(self) -> None:
        """Something has changed: let everybody who waits look."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at whenever something has changed."""
        async with self._changed:
            await self._changed.wait_for(condition)
