"""The desk of a sweep: the one place where Tune, the worker groups and the driver meet.

Tune's trainables:   run_to_rung -> Report        leave
worker groups:       enter -> take -> metrics, progress, rung ... -> finish -> take ...
the driver:          view, prune, give_up, request_stop, group_failed, group_ended, close

An actor on the driver's node. All methods run on one event loop, so that none needs a lock.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cluster.desk import Status
from paceline.sweeps.desk.books import Books
from paceline.sweeps.desk.group_desk import GroupDesk
from paceline.sweeps.desk.hall import Hall
from paceline.sweeps.desk.rules import Rules
from paceline.sweeps.desk.timing import Spent
from paceline.sweeps.desk.trial_run import TrialRun, end_values
from paceline.sweeps.desk.watchdog import watch
from paceline.sweeps.results.ranking import place
from paceline.sweeps.trials import ENDED, Point, Trial
from paceline.sweeps.work import GroupShape, Order, Report, SweepView
from paceline.tracking.record import RunRecord

NOT_NOW = Report("pending")
"""For a trial that does not begin, or continue, in this launch."""


class SweepDesk(GroupDesk):
    """Holds the state of a sweep while it continues."""

    def __init__(self, folder: Path, record: RunRecord, rules: Rules, points: int | None) -> None:
        """Open the sweep's journal and its record.

        Args:
            points: how many trials there will be at the most; None: nobody knows.

        Raises:
            OSError: the folder cannot be written to.
        """
        books = Books(folder, record, rules.objectives)
        super().__init__(Hall(rules, books, points), books)
        self._watch: asyncio.Task[None] | None = None

    # --- the driver ----------------------------------------------------------------------------------------------

    async def prepare(self, shapes: Sequence[GroupShape]) -> None:
        """Want the groups of the first trials at once, and begin to ship the record."""
        for seat, shape in zip(self._seats, shapes if not self._hall.over else (), strict=False):
            seat.renew(shape)
        self._books.begin()
        self._watch = asyncio.create_task(watch(self._hall))

    async def view(self, seen_events: int, since: int = 0) -> SweepView:
        """The state of things for a watcher that has seen so many events.

        Args:
            since: the version that the watcher knows; it is sent only trials that have changed since. 0: all.
        """
        trials = self._books.changed_since(since)
        for run in [seat.run for seat in self._seats if seat.run is not None and seat.is_busy]:
            trials[run.trial.id] = replace(run.trial, seconds=run.seconds)
        return SweepView(
            trials=sorted(trials.values(), key=place),
            events=self._books.events[seen_events:],
            groups=[seat.wanted for seat in self._seats],
            over=self._hall.over,
            fault=self._hall.fault,
            busy=sum(seat.is_busy for seat in self._seats),
            version=self._books.version,
        )

    async def prune(self, trial_id: str, reason: str) -> None:
        """Tune's scheduler has decided that a trial is not worth going on with."""
        run = self._hall.runs.get(trial_id)
        if run is None or run.has_ended:
            return
        run.stop("pruned", reason)
        self._hall.let_go(run)
        await self._hall.notify()

    async def give_up(self, trial_id: str, reason: str) -> None:
        """Tune has given up a trial, since its own part of it failed: the trial ends as failed, whatever it does.

        Its workers hear of it with their next sign of life. One that has not come to the desk is left for a later
        launch.
        """
        run, known = self._hall.runs.get(trial_id), self._books.trials.get(trial_id)
        if run is not None and not run.has_ended:
            self._hall.end(run, "failed", reason)
        elif run is None and known is not None and known.state not in ENDED:
            self._books.trial(replace(known, state="failed", reason=reason))
            self._books.tell("ended", trial=trial_id, state="failed", reason=reason)
        elif run is None and known is None:
            self._books.tell("warning", code="trial-not-begun", message=f"trial {trial_id} did not begin: {reason}")
        self._hall.hand_back()
        await self._hall.notify()

    async def request_stop(self) -> None:
        """The user wants to stop: what is running saves its state, and can be resumed."""
        await self._hall.stop_all("interrupted")

    async def end_early(self, reason: str) -> None:
        """A limit of the sweep is reached: what is running saves its state, and can be resumed."""
        await self._hall.stop_all(reason)

    async def group_failed(self, seat_number: int, generation: int, reason: str) -> None:
        """A worker group could not be started, or gave up. A trial that it was at work on is taken up by another."""
        seat = self._seats[seat_number]
        if seat.is_current(generation):
            await self._losses.has_failed(seat, reason)

    async def group_started(self, seat_number: int, generation: int, units: float) -> None:
        """The driver has asked for the group that a seat wants, which has so many cores or GPUs."""
        self._hall.times.start(seat_number, generation, units)

    async def group_ended(self, seat_number: int, generation: int) -> None:
        """Nothing is left of the group that a seat had: its workers' processes have ended."""
        self._seats[seat_number].workers.pop(generation, None)
        self._hall.times.end(seat_number, generation)

    async def spent(self) -> Spent:
        """What the groups of this launch have spent their time on until now."""
        return self._hall.times.spent()

    async def let_groups_go(self) -> None:
        """Let nothing begin any more, and groups leave that are not at work on a trial."""
        self._hall.over = self._hall.over or "closed"
        self._hall.hand_back()
        await self._hall.notify()

    async def workers_of(self, seat_number: int, generation: int) -> list[bytes]:
        """The pickled handles of the workers of one group, as far as they are known."""
        return list(self._seats[seat_number].workers.get(generation, []))

    async def workers(self) -> list[bytes]:
        """The pickled handles of all workers that may still be there, those of earlier groups among them."""
        return [worker for seat in self._seats for group in seat.workers.values() for worker in group]

    async def close(
        self,
        status: Status,
        reason: str | None,
        note: str,
        artifacts: Mapping[str, bytes],
        timeout_seconds: float,
        costs: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Let all groups go, close all records and ship what is left; returns a `ShipReport` of the sweep's own run as
        a mapping.

        Args:
            costs: metrics that tell what the sweep has cost.
        """
        self._hall.over = self._hall.over or "closed"
        if self._watch is not None:
            self._watch.cancel()
        for run in [run for run in self._hall.runs.values() if not run.has_ended]:
            if run.begun is not None:  # its workers do not answer
                run.end("pending", "its workers did not stop in time")
            elif run.trial.state == "running":
                run.end("pending", reason or "")
            self._hall.release(run)
            self._books.trial(run.trial)
            told = run.trial.reason or reason or "the sweep ended"
            self._books.close_record(run.trial.id, run.desk, "KILLED", told, timeout_seconds)
        self._hall.hand_back()
        await self._hall.notify()
        self._books.take_costs(costs or {})
        return await self._books.close(status, reason, note, artifacts, timeout_seconds)

    async def trials(self) -> list[Trial]:
        """All trials, with the result."""
        return (await self.view(0)).trials

    # --- Tune's trainables ---------------------------------------------------------------------------------------

    async def run_to_rung(self, order: Order, visit: str = "") -> Report:
        """Let a trial begin, or continue; returns when it stands at a rung or has ended.

        Args:
            visit: tells one stay of the trial at a trainable from another. One that comes while the trial stands at a
                rung may bring it another checkpoint, so that it takes a seat again.
        """
        known = self._books.trials.get(order.point.id)
        if known is not None and self._has_ended(known.id):
            return Report(known.state, end_values(known, self._hall.rung_of(known.id)))
        run = None if self._hall.over else self._hall.runs.get(order.point.id) or self._hall.open(order)
        if run is None:
            return NOT_NOW
        run.calls += 1
        call = run.calls
        has_place = run.seat is not None or run.is_displaced
        if has_place and run.is_told and visit != run.visit:
            await self._hall.vacate(run)
            has_place = False
        run.visit = visit
        if not has_place:
            run.order = order
            await self._hall.seat(run, call)
        elif run.rung is not None and run.is_told:
            run.go_on()
            self._books.answer(run.trial.id)
            await self._hall.notify()
        return await self._news(run, call)

    async def _news(self, run: TrialRun, call: int) -> Report:
        """Wait until there is something to tell Tune; a trial that loses its seat meanwhile gets another one."""

        def is_over() -> bool:
            return run.calls != call or run.has_news

        await self._hall.until(lambda: is_over() or run.is_displaced)
        while not is_over() and not self._hall.over:
            await self._hall.seat(run, call)
            await self._hall.until(lambda: is_over() or run.is_displaced)
        return run.report() if run.calls == call else NOT_NOW

    async def skip(self, point: Point, reason: str) -> None:
        """A point that was chosen turned out to be no valid config."""
        run = self._hall.runs.get(point.id)
        if run is not None and not run.has_ended:
            run.stop("skipped", reason)
            self._hall.let_go(run)
        elif run is None and not self._has_ended(point.id):
            self._books.trial(Trial(point.id, dict(point.overrides), state="skipped", reason=reason))
        self._hall.hand_back()
        await self._hall.notify()

    async def leave(self, trial_id: str, visit: str = "") -> None:
        """Let a trial save its state and give up its seat; it may come back later.

        Args:
            visit: as given to `run_to_rung`; nothing is done when the trial has gone on elsewhere meanwhile.
        """
        run = self._hall.runs.get(trial_id)
        if run is None or run.visit != visit:
            return
        run.calls += 1  # nobody waits for it any more
        await self._hall.vacate(run)

    def _has_ended(self, trial_id: str) -> bool:
        known = self._books.trials.get(trial_id)
        return known is not None and known.state in ENDED
