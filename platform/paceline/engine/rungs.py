"""Rungs: how far a trial trains before it is compared with the others, and told whether to go on.

After the optimizer step that reaches a rung, the ranks evaluate, rank 0 saves a checkpoint and asks the reporter, and
all ranks wait for the answer. A rung that was answered is not asked again, also not by a run that resumes; one whose
answer never came is the first thing that a resumed run asks.
"""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from paceline.durable import write_durably
from paceline.engine.checkpoint import CheckpointWriter
from paceline.engine.manifest import MANIFEST
from paceline.engine.order import DataOrder
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import Reporter
from paceline.engine.state import Position

KEY = "rungs"
"""Where a checkpoint holds how its run stands."""
ANSWERED = "answered.json"
"""Beside a checkpoint's own files: how far its rungs had been answered later than it was written."""
ROUND_SECONDS = 10.0
"""How long the other ranks wait in one collective operation at most while rank 0 waits for an answer."""
ROUNDING = 1e-9
"""Relative error of an amount and of a rung: three tenths of an epoch are at the rung of 0.3 epochs."""
_NO_ANSWER = -1.0


@dataclass(frozen=True)
class Rungs:
    """Where a trial stops to be compared. Travels as plain values (`dataclasses.asdict`).

    Raises:
        ValueError: they do not ascend from above 0.
    """

    first: float
    """The first rung, in `unit`; more than 0."""
    factor: float | None = None
    """Ratio of each rung to the one before, more than 1. None: a rung at every multiple of the first."""
    unit: Literal["samples", "epochs", "seconds"] = "samples"
    """What is counted: training samples consumed, passes over the training set, or seconds of training. Seconds are
    those of all attempts, with evaluation and saving but without waiting at rungs; they are looked at only where the
    plan evaluates."""

    def __post_init__(self) -> None:
        if not self.first > 0 or (self.factor is not None and not self.factor > 1):
            raise ValueError(f"rungs begin above 0 and ascend by a factor above 1, not {self}")

    def above(self, amount: float) -> float:
        """The first rung that lies above an amount of training."""
        reached = amount * (1 + ROUNDING)
        if self.factor is None:
            return self.first * (int(reached / self.first) + 1)
        rung = self.first
        while rung <= reached:
            rung *= self.factor
        return rung


class RungStops:
    """Where one trial stands on its rungs. Every rank must call the methods alike, at the same steps.

    Args:
        rungs: None: there are none.
        timeout_seconds: how long a collective operation may wait.
    """

    def __init__(
        self, rungs: Rungs | None, reporter: Reporter, ranks: Ranks, order: DataOrder, timeout_seconds: float
    ) -> None:
        self._rungs = rungs
        self._reporter = reporter
        self._ranks = ranks
        # as many as an epoch consumes: a short last batch may be dropped
        self._samples_per_epoch = min(order.steps_per_epoch * order.global_batch_size, order.samples)
        self._round_seconds = min(ROUND_SECONDS, timeout_seconds / 4)
        self.is_due = False
        """Whether a rung has been reached that is not answered."""
        self._answered_at = 0.0
        self._next = rungs.above(0.0) if rungs is not None else float("inf")
        self._seconds_before = 0.0
        self._start = perf_counter()
        self._agreed_seconds = 0.0
        """Rank 0's, as all ranks know them."""

    def begin(self) -> None:
        """Training begins, or goes on: the time before does not count."""
        self._start = perf_counter()

    @property
    def seconds(self) -> float:
        """Training time by this rank's clock, over all attempts, in seconds."""
        return self._seconds_before + perf_counter() - self._start

    def reached(self, position: Position, evaluates: bool) -> bool:
        """Whether this step has reached one rung or more that are not answered.

        Args:
            evaluates: whether the plan evaluates after this step.
        """
        if self._rungs is None or (self._rungs.unit == "seconds" and not evaluates):
            return False
        if self._rungs.unit == "seconds":
            (self._agreed_seconds,) = self._ranks.from_first([self.seconds])
        self.is_due = self._amount(self._rungs, position) * (1 + ROUNDING) >= self._next
        return self.is_due

    def ask(self, position: Position, metrics: Mapping[str, float], writer: CheckpointWriter | None) -> bool:
        """Have rank 0 ask whether to go on, once the newest checkpoint is safe; returns the answer on every rank."""
        assert self._rungs is not None
        answered_at = self._amount(self._rungs, position)
        values = {
            "samples": float(position.samples),
            "epochs": self._epochs(position),
            "seconds": self.seconds,
            "step": float(position.step),
            **metrics,
        }

        def question() -> bool:
            if writer is not None:
                writer.wait()
            answer = self._reporter.rung(position.step, values)
            saved = writer.last if writer is not None else None
            if answer is not None and saved is not None and saved.name == f"step-{position.step}":
                _remember(saved, answered_at)
            return bool(answer)

        start = perf_counter()
        goes_on = ask_first(self._ranks, question, self._round_seconds)
        self._start += perf_counter() - start
        self._settle(answered_at)
        return goes_on

    def state(self) -> dict[str, Any]:
        """What a checkpoint is to hold under `KEY`, as JSON values."""
        if self._rungs is None:
            return {}
        state = {"unit": self._rungs.unit, "answered_at": self._answered_at, "is_due": self.is_due}
        return {**state, "seconds": self.seconds}

    def load_state(self, state: Mapping[str, Any], position: Position, checkpoint: Path) -> None:
        """Go on from a checkpoint's state; an empty one is that of a run without rungs, or with others."""
        if self._rungs is None:
            return
        self._seconds_before = self._agreed_seconds = float(state.get("seconds", 0.0))
        amount = self._amount(self._rungs, position)
        same_unit = state.get("unit") == self._rungs.unit
        answered_at = max(float(state["answered_at"]), self._read(checkpoint)) if same_unit else amount
        self._settle(answered_at)
        self.is_due = same_unit and bool(state["is_due"]) and amount * (1 + ROUNDING) >= self._next
        if not self.is_due and self._rungs.unit != "seconds":
            self._settle(amount)  # rungs that others have now, and that lie behind, are not for this run

    def _settle(self, answered_at: float) -> None:
        assert self._rungs is not None
        self._answered_at = answered_at
        self._next = self._rungs.above(answered_at)
        self.is_due = False

    def _read(self, checkpoint: Path) -> float:
        """How far rungs had been answered after a checkpoint was written, as rank 0 finds it."""
        answered_at = 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            answered_at = float(json.loads((checkpoint / ANSWERED).read_bytes())["answered_at"])
        return self._ranks.from_first([answered_at])[0]

    def _amount(self, rungs: Rungs, position: Position) -> float:
        if rungs.unit == "samples":
            return float(position.samples)
        return self._epochs(position) if rungs.unit == "epochs" else self._agreed_seconds

    def _epochs(self, position: Position) -> float:
        return position.epoch + position.epoch_samples / self._samples_per_epoch


def _remember(checkpoint: Path, answered_at: float) -> None:
    # The checkpoint itself is not written anew: it would be gone for a moment. If this is lost, the run asks again.
    if not (checkpoint / MANIFEST).exists():
        return  # another trial's state has been put in its place meanwhile
    with suppress(OSError):
        write_durably(checkpoint / ANSWERED, json.dumps({"answered_at": answered_at}).encode())


def ask_first(ranks: Ranks, question: Callable[[], bool], round_seconds: float) -> bool:
    """Rank 0's answer to `question`, which may take as long as it likes, on every rank. Every rank must call it.

    The others wait in collective operations of `round_seconds` each, so that none of them times out. Among several
    ranks, the question is asked in a thread of its own.
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
    """What a function gives, which is called in a thread of its own."""

    def __init__(self, question: Callable[[], bool]) -> None:
        self._question = question
        self._answer = _NO_ANSWER
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._ask, name="rung-question", daemon=True)
        self._thread.start()

    def within(self, seconds: float) -> float:
        """1 or 0 for yes or no, -1 when there is no answer yet; raises what the function raised."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return self._answer

    def _ask(self) -> None:
        try:
            self._answer = float(self._question())
        except BaseException as error:
            self._error = error
