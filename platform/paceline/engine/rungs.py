"""Rungs: amounts of training after which a trial is compared with the others, and continues or ends.

After the optimizer step that reaches a rung, the ranks evaluate, rank 0 saves a checkpoint and asks the reporter, and
all ranks wait for the answer. A rung that was answered is not asked again, also not by a run that resumes. A resumed
run first asks about a rung that was reached but not answered.
"""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from paceline.callbacks.callback import Control, TrainContext
from paceline.durable import write_durably
from paceline.engine.agreement import INTERRUPT
from paceline.engine.checkpoint import Checkpointer
from paceline.engine.dist_context import DistContext, round_seconds_of
from paceline.engine.loop_context import BoundaryCallback
from paceline.engine.manifest import MANIFEST
from paceline.engine.meter import Meter
from paceline.engine.plan import TrainPlan
from paceline.engine.reporter import Reporter
from paceline.engine.state import Position, TrainState

ANSWERED = "answered.json"
"""File beside a checkpoint's own files: the amount up to which rungs were answered after it was written."""
ROUNDING = 1e-9
"""Relative tolerance between an amount and a rung: three tenths of an epoch reach the rung of 0.3 epochs."""
_NO_ANSWER = -1.0


@dataclass(frozen=True)
class Rungs:
    """Amounts of training at which a trial is compared. Sent as plain values (`dataclasses.asdict`).

    Raises:
        ValueError: the rungs do not ascend from above 0.
    """

    first: float
    """First rung, in `unit`; more than 0."""
    factor: float | None = None
    """Ratio of each rung to the one before, more than 1. None: a rung at every multiple of the first."""
    unit: Literal["samples", "epochs", "seconds"] = "samples"
    """Unit of the rungs: training samples consumed, passes over the training set, or seconds of training. Seconds are
    those of all attempts, with evaluation and saving but without waiting at rungs. They are checked only at steps where
    the plan evaluates."""

    def __post_init__(self) -> None:
        if not self.first > 0 or (self.factor is not None and not self.factor > 1):
            raise ValueError(f"rungs begin above 0 and ascend by a factor above 1, not {self}")

    def above(self, amount: float) -> float:
        """Return the first rung above an amount of training."""
        reached = amount * (1 + ROUNDING)
        if self.factor is None:
            return self.first * (int(reached / self.first) + 1)
        rung = self.first
        while rung <= reached:
            rung *= self.factor
        return rung


class RungStopper(BoundaryCallback):
    """Stops a trial at a rung that it does not survive. Rank 0 asks, once the rung's checkpoint is saved.

    Args:
        samples_per_epoch: number of samples that an epoch consumes; infinite if it is not known.
        timeout_seconds: longest time that a collective operation may take, in seconds.
    """

    def __init__(
        self,
        rungs: Rungs,
        reporter: Reporter,
        ranks: DistContext,
        samples_per_epoch: float,
        state: TrainState,
        plan: TrainPlan,
        checkpointer: Checkpointer,
        meter: Meter,
        timeout_seconds: float,
    ) -> None:
        self.is_due = False
        """True if a rung was reached that has not been answered."""
        self._rungs = rungs
        self._reporter = reporter
        self._ranks = ranks
        self._state = state
        self._plan = plan
        self._checkpointer = checkpointer
        self._meter = meter
        self._samples_per_epoch = samples_per_epoch
        self._round_seconds = round_seconds_of(timeout_seconds)
        self._answered_at = 0.0
        self._next = rungs.above(0.0)
        self._seconds_before = 0.0
        self._start = perf_counter()
        self._agreed_seconds = 0.0
        """Rank 0's seconds of training, shared with all ranks."""
        self._loaded: Mapping[str, Any] | None = None

    def on_train_start(self, ctx: TrainContext) -> None:
        """Start the clock: time before it does not count."""
        if self._checkpointer.resumed_from is not None:
            self._restore(self._loaded or {}, self._checkpointer.resumed_from)
        self._start = perf_counter()

    def on_step_end(self, ctx: TrainContext) -> Control:
        """Check if this step has reached one rung or more. If so, it is saved and evaluated."""
        position = self._state.position
        if self._plan.is_over(position):
            self.is_due = False
        elif self._rungs.unit != "seconds" or self._plan.evaluates(position):
            if self._rungs.unit == "seconds":
                (self._agreed_seconds,) = self._ranks.from_first([self.seconds])
            self.is_due = self._amount(position) * (1 + ROUNDING) >= self._next
        return Control.SAVE if self.is_due else Control.CONTINUE

    def on_boundary(self, ctx: TrainContext) -> int:
        """Ask, if a rung is due. Called last, after all other work of the step, including the checkpoint."""
        if not self.is_due or self._plan.is_over(self._state.position):
            return Control.CONTINUE
        with self._meter.excluded("waiting"):
            may_continue = self._ask(self._state.position, self._state.metrics)
        return Control.CONTINUE if may_continue else INTERRUPT

    @property
    def seconds(self) -> float:
        """Training time in seconds by this rank's clock, over all attempts."""
        return self._seconds_before + perf_counter() - self._start

    def state_dict(self) -> dict[str, Any]:
        """Return the last answered amount, the open question and the training time, as JSON values."""
        state = {"unit": self._rungs.unit, "answered_at": self._answered_at, "is_due": self.is_due}
        return {**state, "seconds": self.seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state once training starts. The state of a run without rungs is empty."""
        self._loaded = state

    def _ask(self, position: Position, metrics: Mapping[str, float]) -> bool:
        """Let rank 0 ask whether to continue, once the newest checkpoint is safe; return its answer on every rank."""
        answered_at = self._amount(position)
        values = {
            "samples": float(position.samples),
            "epochs": self._epochs(position),
            "seconds": self.seconds,
            "step": float(position.step),
            **metrics,
        }
        writer = self._checkpointer.writer

        def question() -> bool:
            if writer is not None:
                writer.wait()
            answer = self._reporter.rung(position.step, values)
            saved = writer.last if writer is not None else None
            if answer is not None and saved is not None and saved.name == f"step-{position.step}":
                _remember(saved, answered_at)
            return bool(answer)

        start = perf_counter()
        may_continue = ask_first(self._ranks, question, self._round_seconds)
        self._start += perf_counter() - start
        self._settle(answered_at)
        return may_continue

    def _restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        position = self._state.position
        self._seconds_before = self._agreed_seconds = float(state.get("seconds", 0.0))
        amount = self._amount(position)
        same_unit = state.get("unit") == self._rungs.unit
        answered_at = max(float(state["answered_at"]), self._read(checkpoint)) if same_unit else amount
        self._settle(answered_at)
        self.is_due = same_unit and bool(state["is_due"]) and amount * (1 + ROUNDING) >= self._next
        if not self.is_due and self._rungs.unit != "seconds":
            self._settle(amount)  # rungs that this run has passed already are not asked

    def _settle(self, answered_at: float) -> None:
        self._answered_at = answered_at
        self._next = self._rungs.above(answered_at)
        self.is_due = False

    def _read(self, checkpoint: Path) -> float:
        """Return the amount up to which rungs were answered after a checkpoint was written; rank 0 reads it for all."""
        answered_at = 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            answered_at = float(json.loads((checkpoint / ANSWERED).read_bytes())["answered_at"])
        return self._ranks.from_first([answered_at])[0]

    def _amount(self, position: Position) -> float:
        if self._rungs.unit == "samples":
            return float(position.samples)
        return self._epochs(position) if self._rungs.unit == "epochs" else self._agreed_seconds

    def _epochs(self, position: Position) -> float:
        return position.epoch + position.epoch_samples / self._samples_per_epoch


def _remember(checkpoint: Path, answered_at: float) -> None:
    # The checkpoint itself is not written again: it would be gone for a moment. If this is lost, the run asks again.
    if not (checkpoint / MANIFEST).exists():
        return  # the state of another trial has replaced it meanwhile
    with suppress(OSError):
        write_durably(checkpoint / ANSWERED, json.dumps({"answered_at": answered_at}).encode())


def ask_first(ranks: DistContext, question: Callable[[], bool], round_seconds: float) -> bool:
    """Return rank 0's answer to `question` on every rank. Every rank must call it.

    The question may take any time: the other ranks wait in collective operations of `round_seconds` each, so that none
    of them times out. With several ranks, the question is asked in a thread of its own.
    """
    if ranks.world_size == 1:
        return question()
    answer = _Answer(question) if ranks.is_first else None
    while True:
        mine = answer.within(round_seconds) if answer is not None else _NO_ANSWER
        (told,) = ranks.from_first([mine])
        if told != _NO_ANSWER:
            return bool(told)


class _Answer:
    """Answer of a function that is called in a thread of its own."""

    def __init__(self, question: Callable[[], bool]) -> None:
        self._question = question
        self._answer = _NO_ANSWER
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._ask, name="rung-question", daemon=True)
        self._thread.start()

    def within(self, seconds: float) -> float:
        """Return 1 or 0 for yes or no, or -1 without an answer after `seconds`; raises the function's error."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return self._answer

    def _ask(self) -> None:
        try:
            self._answer = float(self._question())
        except BaseException as error:
            self._error = error
