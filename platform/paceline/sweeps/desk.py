"""The desk of a sweep: the one place where Tune, the worker groups and the driver meet.

Tune's trainables:   run_to_rung -> Report        leave
worker groups:       enter -> take -> metrics, progress, rung ... -> finish -> take ...
the driver:          view, prune, request_stop, group_failed, close

An actor on the driver's node. All methods run on one event loop, so that none needs a lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cluster.desk import Status
from paceline.sweeps import books
from paceline.sweeps.books import Books
from paceline.sweeps.hall import Hall
from paceline.sweeps.hall import Rules as Rules
from paceline.sweeps.ranking import place
from paceline.sweeps.trial_run import TrialRun, end_values
from paceline.sweeps.trials import ENDED, Point, Trial
from paceline.sweeps.work import GroupShape, Order, Report, SweepView, Work
from paceline.tracking.record import RunRecord

MAX_LAUNCH_FAILURES = 3
"""How often in a row a worker group may fail to start before the sweep gives up."""
NOT_NOW = Report("pending")
"""For a trial that does not begin, or go on, in this launch."""


class SweepDesk:
    """Holds the state of a sweep while it goes on."""

    def __init__(self, folder: Path, record: RunRecord, rules: Rules, points: int | None) -> None:
        """Open the sweep's journal and its record.

        Args:
            points: how many trials there will be at the most; None: nobody knows.

        Raises:
            OSError: the folder cannot be written to.
        """
        self._books = Books(folder, record, rules.objectives)
        self._hall = Hall(rules, self._books, points)
        self._seats = self._hall.seats
        self._fault = ""
        self._launch_failures = 0

    # --- the driver ----------------------------------------------------------------------------------------------

    async def prepare(self, shapes: Sequence[GroupShape]) -> None:
        """Want the groups of the first trials at once, and begin to ship the record."""
        for seat, shape in zip(self._seats, shapes if not self._hall.over else (), strict=False):
            seat.renew(shape)
        self._books.begin()

    async def view(self, seen_events: int) -> SweepView:
        """The state of things for a watcher that has seen so many events."""
        trials = dict(self._books.trials)
        for run in self._hall.runs.values():
            if run.begun is not None:
                trials[run.trial.id] = replace(run.trial, seconds=run.seconds)
        return SweepView(
            trials=sorted(trials.values(), key=place),
            events=self._books.events[seen_events:],
            groups=[seat.wanted for seat in self._seats],
            over=self._hall.over,
            fault=self._fault,
        )

    async def prune(self, trial_id: str, reason: str) -> None:
        """Tune's scheduler has decided that a trial is not worth going on with."""
        run = self._hall.runs.get(trial_id)
        if run is None or run.has_ended:
            return
        run.stopping = "pruned", reason
        self._hall.let_go(run)
        await self._hall.notify()

    async def request_stop(self) -> None:
        """The user wants to stop: what is running saves its state, and can be resumed."""
        await self._hall.stop_all("interrupted")

    async def end_early(self, reason: str) -> None:
        """A limit of the sweep is reached: what is running saves its state, and can be resumed."""
        await self._hall.stop_all(reason)

    async def group_failed(self, seat_number: int, generation: int, reason: str) -> None:
        """A worker group could not be started, or gave up. A trial that it was at work on ends."""
        seat = self._seats[seat_number]
        if not seat.is_current(generation):
            return
        self._launch_failures += 1
        run = seat.run
        if run is None or run.begun is None:
            seat.renew(seat.shape)  # the trial waits for the next group, if there is one
        else:
            seat.renew(None)
            self._hall.end(run, "failed", reason)
        if self._launch_failures >= MAX_LAUNCH_FAILURES:
            self._fault = reason
            await self._hall.stop_all(reason)
        self._hall.hand_back()
        await self._hall.notify()

    async def workers(self) -> list[bytes]:
        """The pickled handles of all workers that may still be there."""
        return [worker for seat in self._seats for worker in seat.workers]

    async def close(
        self, status: Status, reason: str | None, note: str, artifacts: Mapping[str, bytes], timeout_seconds: float
    ) -> dict[str, Any]:
        """Let all groups go, close all records and ship what is left; returns a `ShipReport` of the sweep's own run as
        a mapping."""
        self._hall.over = self._hall.over or "closed"
        for run in [run for run in self._hall.runs.values() if not run.has_ended]:
            if run.begun is not None:  # its workers do not answer
                run.end("pending", "its workers did not stop in time")
            elif run.trial.state == "running":
                run.end("pending", reason or "")
            self._hall.release(run)
            self._books.trial(run.trial)
            told = run.trial.reason or reason or "the sweep ended"
            self._books.close_record(run, "KILLED", told, min(books.CHILD_CLOSE_SECONDS, timeout_seconds))
        self._hall.hand_back()
        await self._hall.notify()
        return await self._books.close(status, reason, note, artifacts, timeout_seconds)

    async def trials(self) -> list[Trial]:
        """All trials, with what came of them."""
        return (await self.view(0)).trials

    # --- Tune's trainables ---------------------------------------------------------------------------------------

    async def run_to_rung(self, order: Order, visit: str = "") -> Report:
        """Let a trial begin, or go on; returns when it stands at a rung or has ended.

        Args:
            visit: tells one stay of the trial at a trainable from another. One that comes while the trial stands at a
                rung may bring it another checkpoint, so that it takes a seat anew.
        """
        known = self._books.trials.get(order.point.id)
        if known is not None and known.state in ENDED:
            return Report(known.state, end_values(known, self._hall.rung_of(known.id)))
        run = None if self._hall.over else self._hall.runs.get(order.point.id) or self._hall.open(order)
        if run is None:
            return NOT_NOW
        run.calls += 1
        call = run.calls
        if run.seat is not None and run.is_told and visit != run.visit:
            await self._hall.vacate(run)
        run.visit = visit
        if run.seat is None:
            run.order = order
            await self._hall.seat(run, call)
        elif run.rung is not None and run.is_told:
            run.go_on()
            self._books.answer(run.trial.id)
            await self._hall.notify()
        await self._hall.until(lambda: run.calls != call or run.has_news)
        return run.report() if run.calls == call else NOT_NOW

    async def skip(self, point: Point, reason: str) -> None:
        """A point that was chosen turned out to be no valid config."""
        run = self._hall.runs.get(point.id)
        if run is not None and not run.has_ended:
            run.stopping = "skipped", reason
            self._hall.let_go(run)
        elif run is None:
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

    # --- worker groups -------------------------------------------------------------------------------------------

    async def enter(self, seat_number: int, generation: int, rank: int, worker: bytes) -> int | None:
        """A worker process reports for work; returns the incarnation of its group, or None: there is none left."""
        seat = self._seats[seat_number]
        if not seat.is_current(generation):
            return None
        seat.workers.append(worker)
        if rank == 0:
            seat.incarnation += 1
            self._launch_failures = 0
            self._hall.count_failure(seat)
            await self._hall.notify()
        return seat.incarnation

    async def take(self, seat_number: int, generation: int, incarnation: int) -> Work | None:
        """What a group is to do next; waits until there is something. None: it is to leave. Called by its rank 0."""
        seat = self._seats[seat_number]

        def has_news() -> bool:
            return not seat.is_current(generation, incarnation) or (seat.run is not None and seat.run.begun is None)

        await self._hall.until(has_news)
        run = seat.run
        if run is None or not seat.is_current(generation, incarnation):
            return None
        seat.taken += 1
        seat.was_used = True
        run.begin()
        self._books.trial(run.trial)
        order = run.order
        return Work(seat.taken, run.trial.id, run.trial.attempts, order.assignment, order.timeout_seconds)

    async def begin(self, trial_id: str, attempt: int, device: str) -> None:
        """The workers are about to train on such a device."""
        run = self._running(trial_id, attempt)
        if run is not None:
            run.desk.begin(device)

    async def metrics(self, trial_id: str, attempt: int, step: int, values: Mapping[str, float]) -> bool:
        """Record the values of a step; returns whether they are safe."""
        run = self._running(trial_id, attempt)
        if run is None:
            return True
        run.measure(step, values)
        return run.desk.metrics(step, values)

    async def progress(self, trial_id: str, attempt: int, step: int, samples_per_second: float) -> bool:
        """A sign of life; returns whether the trial is to save its state and stop."""
        run = self._running(trial_id, attempt)
        if run is None:
            return True
        run.measure(step, {}, samples_per_second)
        limit = self._hall.rules.trial_seconds
        if limit is not None and run.seconds > limit and run.stopping is None:
            run.stopping = "pruned", f"stopped after {run.seconds:.0f} s, as sweep.stop.trial_seconds says"
        return run.stopping is not None

    async def event(self, trial_id: str, attempt: int, kind: str, details: dict[str, Any]) -> None:
        """Something worth telling the watcher."""
        run = self._running(trial_id, attempt)
        if run is None:
            return
        run.desk.event(kind, details)
        if kind == "plan":
            run.trial = replace(run.trial, total_steps=details["total_steps"])
        elif kind == "checkpoint":
            run.trial = replace(run.trial, checkpoint=details["path"])
        elif kind in ("warning", "resumed"):
            self._books.tell(kind, **{**details, "trial": trial_id})

    async def may_commit(self, trial_id: str, attempt: int) -> bool:
        """Whether the trial still belongs to the group that asks, so that it may put a checkpoint in place."""
        return self._running(trial_id, attempt) is not None

    async def rung(self, trial_id: str, attempt: int, values: dict[str, float]) -> bool:
        """The trial stands at a rung, its state saved; returns, once it is decided, whether it is to go on."""
        run = self._running(trial_id, attempt)
        if run is None:
            return False
        if run.answered_step is not None and run.answered_step >= values["step"]:
            return run.stopping is None  # the group died before it heard the answer
        if run.rung is None or run.rung["step"] != values["step"]:
            run.stand_at(values)
            self._books.rung(trial_id, values)
        await self._hall.notify()
        await self._hall.until(lambda: run.rung is None or run.stopping is not None)
        if self._running(trial_id, attempt) is None:
            return False
        if run.stopping is not None:
            self._books.answer(trial_id)
        return run.stopping is None

    async def finish(self, trial_id: str, attempt: int, ending: Mapping[str, Any]) -> None:
        """How the training of a trial ended, from rank 0 or from the rank that failed; the first word stays."""
        run = self._running(trial_id, attempt)
        if run is None:
            return
        run.desk.finish(ending)
        run.conclude(ending)
        self._hall.rest_or_close(run)
        await self._hall.notify()

    # --- within --------------------------------------------------------------------------------------------------

    def _running(self, trial_id: str, attempt: int) -> TrialRun | None:
        """The trial, if the group that speaks of it is the one that has it."""
        run = self._hall.runs.get(trial_id)
        return run if run is not None and run.begun is not None and run.trial.attempts == attempt else None
