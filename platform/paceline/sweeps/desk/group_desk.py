"""The desk of a sweep as its worker groups know it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.cluster.desk import HINT_OF_UNRECORDED
from paceline.cluster.last_words import LastWords
from paceline.sweeps.desk.books import Books
from paceline.sweeps.desk.hall import Hall
from paceline.sweeps.desk.losses import Losses
from paceline.sweeps.desk.timing import WAITING
from paceline.sweeps.desk.trial_run import TrialRun
from paceline.sweeps.work import Work
from paceline.tracking.points import Reading

OF_THE_RECORD = (
    *("batch", "datasets", "initial_weights", "optimizer", "preemption", "ranks", "stamp", "stopped_early"),
    "straggler",
)
"""Kinds of events that go into a trial's own record."""


class GroupDesk:
    """Gives the groups their trials, and takes what they report. Part of `SweepDesk`."""

    def __init__(self, hall: Hall, books: Books) -> None:
        self._hall, self._books = hall, books
        self._seats = hall.seats
        self._losses = Losses(hall)

    async def enter(self, seat_number: int, generation: int, rank: int, worker: bytes) -> int | None:
        """A worker process reports for work; returns the incarnation of its group, or None: there is none left."""
        seat = self._seats[seat_number]
        seat.workers.setdefault(generation, []).append(worker)
        if not seat.is_current(generation):
            return None
        if rank == 0 and not await self._losses.has_started(seat):
            return None
        if rank == 0:
            self._hall.times.turn_to(seat_number, generation, WAITING)
        return seat.incarnation

    async def take(self, seat_number: int, generation: int, incarnation: int) -> Work | None:
        """What a group is to do next; waits until there is something. None: it is to leave. Called by its rank 0.

        The trial is the group's once something is heard of it: the caller may have died while it waited.
        """
        seat = self._seats[seat_number]
        self._hall.times.turn_to(seat_number, generation, WAITING)

        def has_news() -> bool:
            return not seat.is_current(generation, incarnation) or (seat.run is not None and seat.run.begun is None)

        await self._hall.until(has_news)
        run = seat.run
        if run is None or not seat.is_current(generation, incarnation):
            return None
        seat.taken += 1
        self._hall.times.turn_to(seat_number, generation, "trial", run.trial.id)
        run.begin()
        self._books.trial(run.trial)
        order = run.order
        return Work(seat.taken, run.trial.id, run.trial.attempts, order.assignment, order.timeout_seconds)

    async def begin(self, trial_id: str, attempt: int, device: str) -> None:
        """The workers are about to train on such a device."""
        run = self._running(trial_id, attempt)
        if run is not None:
            run.desk.begin(device)

    async def metrics(self, trial_id: str, attempt: int, readings: Sequence[Reading]) -> bool:
        """Record what was measured, in the order of the steps; returns whether all of it is safe."""
        run = self._running(trial_id, attempt)
        if run is None:
            return True
        for reading in readings:
            run.measure(reading.step, reading.values)
            self._hall.times.measure(trial_id, attempt, reading)
        is_safe = run.desk.metrics(readings)
        if not self._hall.over:
            self._hall.check_objectives(run.trial)
            if self._hall.over:
                await self._hall.notify()
        return is_safe

    async def progress(self, trial_id: str, attempt: int, step: int, samples_per_second: float) -> bool:
        """A sign of life; returns whether the trial is to save its state and stop."""
        run = self._running(trial_id, attempt)
        if run is None:
            return True
        run.measure(step, {}, samples_per_second)
        self._hall.stop_overdue(run)
        return run.stopping is not None

    async def event(self, trial_id: str, attempt: int, kind: str, details: dict[str, Any]) -> None:
        """Something worth telling the watcher."""
        run = self._running(trial_id, attempt)
        if run is None:
            return
        if kind in OF_THE_RECORD:
            run.desk.event(kind, details)
        elif kind == "plan":
            run.trial = replace(run.trial, total_steps=details["total_steps"])
        elif kind == "checkpoint":
            run.trial = replace(run.trial, checkpoint=details["path"])
        elif kind in ("warning", "resumed"):
            self._books.tell(kind, **{**details, "trial": trial_id})

    async def may_commit(self, trial_id: str, attempt: int) -> bool:
        """Whether the trial still belongs to the group that asks, so that it may put a checkpoint in place."""
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
            run.stand_at(values)
            self._books.rung(trial_id, values)
        await self._hall.notify()
        await self._hall.until(lambda: run.rung is None or run.stopping is not None)
        if self._running(trial_id, attempt) is None:
            return None
        if run.stopping is None:
            return True
        if run.stopping[0] == "pending" or (run.stopping[0] == "paused" and not run.is_told):
            return None
        self._books.answer(trial_id)
        return False

    async def finish(self, trial_id: str, attempt: int, ending: Mapping[str, Any]) -> None:
        """How the training of a trial ended, from rank 0 or from the rank that failed; the first word stays.

        Args:
            ending: with what could not be recorded before, see `LastWords`.
        """
        run = self._running(trial_id, attempt)
        if run is None:
            return
        words = LastWords.read(ending)
        if words.unrecorded and not await self.metrics(trial_id, attempt, words.unrecorded):
            message = f"its last metrics are not recorded; {HINT_OF_UNRECORDED}"
            self._books.tell("warning", code="metrics-not-recorded", trial=trial_id, message=message)
        run.desk.note_lost(words.lost)
        if (seat := self._hall.seat_of(run)) is not None:
            self._hall.times.turn_to(seat.number, seat.generation, WAITING)
        run.conclude(words.ending)
        self._hall.rest_or_close(run)
        await self._hall.notify()

    # --- within --------------------------------------------------------------------------------------------------

    def _running(self, trial_id: str, attempt: int) -> TrialRun | None:
        """The trial, if the group that speaks of it is the one that has it."""
        run = self._hall.runs.get(trial_id)
        if run is None or run.begun is None or run.trial.attempts != attempt:
            return None
        if not run.is_confirmed and (seat := self._hall.seat_of(run)) is not None:
            run.is_confirmed = True
            self._losses.is_at_work(seat)
        return run
