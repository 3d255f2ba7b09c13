"""A trial between its first assignment to a slot and its end, and its record."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from paceline.cluster.run_coordinator import RunCoordinator
from paceline.redaction import redact
from paceline.sweeps.coordinator.write_queue import WriteQueue
from paceline.sweeps.messages import TrialReport, TrialSpec
from paceline.sweeps.restart_state import SavedAttempt
from paceline.sweeps.results.labels import is_number
from paceline.sweeps.states import ATTEMPT, ENDED, AttemptState, TrialState, moved
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import TAG_LENGTH, param_text

FAILED_AS: dict[str, TrialState] = {"error": "failed", "diverged": "diverged", "oom": "oom", "full_disk": "pending"}
"""The state of a trial whose failure is of this kind. One that found a disk full succeeds once there is room."""
TRACEBACK_FILE = "traceback.txt"
MOST_CHARACTERS = 100_000
"""Number of characters kept of a traceback; a longer one loses its middle."""
LONGEST_LINE = 1000
"""Characters of a line that are kept."""
Result = TypeVar("Result")
_AT_STEP = re.compile(r"\bat step (\d+)")


class TrialCoordinator(RunCoordinator):
    """A run's coordinator that also keeps the traceback of a failed trial."""

    registers_checkpoints = False  # that of the best trial is registered at the sweep's end

    def keep_traceback(self, text: str) -> None:
        """Add the traceback to the trial's record, without secrets; trouble with that is reported to the watcher.

        Args:
            text: empty: there is nothing to keep.
        """
        if not text:
            return
        try:
            self._recorder.add_artifact(TRACEBACK_FILE, kept_text(text).encode(errors="replace"))
        except OSError as error:
            message = f"{TRACEBACK_FILE} could not be written: {error}"
            self.event("warning", {"code": "traceback-not-written", "message": message})

    def note_axes(self, step: int, params: Mapping[str, Any]) -> None:
        """Record the trial's numeric params as metrics: in MLflow, only a metric can be a chart's axis.

        Args:
            step: step from which the trial has these values.
        """
        now = int(time.time() * 1000)
        numbers = {key: float(value) for key, value in params.items() if key != "seed" and is_number(value)}
        points = [MetricPoint(metrics.axis_metric(key), value, step, now) for key, value in numbers.items()]
        try:
            self._recorder.append(points)
        except OSError as error:
            message = f"the axes could not be recorded: {error}"
            self.event("warning", {"code": "axes-not-recorded", "message": message})


def kept_text(traceback_text: str) -> str:
    """A traceback as it may be stored: without secrets, and of about `MOST_CHARACTERS` at the most."""
    lines = traceback_text.splitlines()
    head = _fitting(lines, MOST_CHARACTERS // 2)
    tail = _fitting(lines[len(head) :][::-1], MOST_CHARACTERS // 2)[::-1]
    left_out = len(lines) - len(head) - len(tail)
    return redact("\n".join([*head, *([f"... {left_out} lines are left out ..."] if left_out else []), *tail])) + "\n"


def _fitting(lines: list[str], room: int) -> list[str]:
    """The first lines that have room, each shortened if need be."""
    kept: list[str] = []
    for line in map(_shortened, lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def _shortened(line: str) -> str:
    # at a blank: half a secret would not be known for one any more
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE].rpartition(' ')[0]} ..."


@dataclass(kw_only=True)
class RunningTrial(SavedAttempt):
    """A trial, its record, and where it stands between Tune and its worker group."""

    spec: TrialSpec | None
    """None: the coordinator was started again, and Tune has not yet asked for the trial since."""
    trial: Trial
    coordinator: TrialCoordinator
    writes: WriteQueue
    """Queue of the writes to its record."""
    is_reported: bool = False
    """True once Tune has the report of the rung where it waits."""
    reached: dict[str, float] = field(default_factory=dict)
    """The values at the rung that it reached last."""
    stopping_since: float = 0.0
    """Time of the first order to stop."""
    visit: str | None = ""
    """Names the one of Tune's trainables that has it; None: not known since the coordinator was started again."""
    calls: int = 0
    """Counts how often Tune has asked for it, or released it: only the newest call is waited for."""
    assignments: int = 0
    """Counts the slots that it was given."""
    changes: list[str] = field(default_factory=list)
    """The values that were changed since it began, and at which step."""

    @property
    def has_ended(self) -> bool:
        """True once its state is final."""
        return self.trial.state in ENDED

    @property
    def seconds(self) -> float:
        """Time on worker groups so far."""
        return self.trial.seconds + (time.monotonic() - self.begun if self.begun is not None else 0.0)

    @property
    def has_news(self) -> bool:
        """True if Tune does not know of its rung yet, or that it has released its slot."""
        return self.state == "waiting" or (self.rung is not None and not self.is_reported)

    def _turn(self, state: AttemptState) -> None:
        self.state = moved(ATTEMPT, self.state, state)

    def write(self, what: Callable[[TrialCoordinator], Result]) -> "asyncio.Future[Result]":
        """Have something done with its record, in a thread, after all that was put in before."""
        return self.writes.put(lambda: what(self.coordinator))

    def stop(self, state: TrialState, reason: str) -> None:
        """It is to have this state once its workers have released it."""
        if self.stopping is None:
            self.stopping_since = time.monotonic()
        self.stopping = state, reason

    def take_slot(self, slot: int) -> None:
        """A worker group is going to take it; called by the slot."""
        if self.state != "displaced":
            # it may come from another one's checkpoint, about whose rungs it got no decision
            self.answered_step = self.stopping = None
        self._turn("assigned")
        self.slot = slot
        self.assignments += 1
        assert self.spec is not None
        self._take_values(self.spec.planned.params)
        self.trial = replace(self.trial, state="running", reason="")

    def _take_values(self, params: Mapping[str, Any]) -> None:
        """Population-based training may send it back with other values; its record's params stay the first ones."""
        before = self.trial.params
        changed = [
            f"{key}: {param_text(before.get(key))} -> {param_text(value)} at step {self.trial.steps}"
            for key, value in params.items()
            if before.get(key) != value
        ]
        self.trial = replace(self.trial, params=dict(params))
        if changed:
            self.changes += changed
            text, steps = "\n".join(self.changes)[-TAG_LENGTH:], self.trial.steps
            self.write(lambda coordinator: coordinator.tag({metrics.CHANGED_PARAMS: text}))
            self.write(lambda coordinator: coordinator.note_axes(steps, params))

    def displace(self) -> None:
        """Its slot is none any more: it continues in another one, from its newest checkpoint."""
        self._turn("displaced")
        self.slot = None
        self.displacements += 1
        self.trial = replace(self.trial, state="pending")

    def begin(self) -> None:
        """A group has taken it; called by the slot."""
        self._turn("taken")
        self.begun = time.monotonic()
        self.trial = replace(self.trial, state="running", attempts=self.trial.attempts + 1)

    def confirm(self) -> None:
        """Something was heard of the group that has taken it."""
        self._turn("at_work")

    def release(self) -> None:
        """Take its slot away; it gets another one only when Tune asks for it again."""
        self._turn("waiting")
        self.slot = None

    def measure(self, step: int, values: Mapping[str, float], samples_per_second: float | None = None) -> None:
        """Update the trial with the metrics of a step."""
        known = self.trial.samples_per_second
        speed = values.get("samples_per_second", known if samples_per_second is None else samples_per_second)
        of_the_trial = {key: value for key, value in values.items() if not key.startswith(metrics.SYSTEM)}
        known_now = {**self.trial.metrics, **of_the_trial}
        steps = max(step, self.trial.steps)
        self.trial = replace(self.trial, steps=steps, metrics=known_now, samples_per_second=speed)

    def wait_at_rung(self, values: dict[str, float]) -> None:
        """Note that it has reached a rung and waits there."""
        self.rung, self.reached, self.is_reported = values, values, False
        self.trial = replace(self.trial, samples=int(values["samples"]))

    def leave_rung(self) -> None:
        """Note that Tune lets it continue from its rung."""
        assert self.rung is not None
        self.answered_step, self.rung, self.is_reported = int(self.rung["step"]), None, False

    def lose_group(self) -> None:
        """Note that its group, if it has one, has released it or is gone."""
        if self.state == "at_work":  # what nobody was at work on took no time
            self.trial = replace(self.trial, seconds=self.seconds)
        if self.begun is not None:
            self._turn("assigned")
        self.begun = None

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Apply the final state that its workers report."""
        self.lose_group()
        stopped: tuple[TrialState, str] = self.stopping or ("paused", "")
        self.stopping, self.rung, self.is_reported = None, None, False
        if ending["status"] == "failed":
            failure = ending["failure"]
            state = FAILED_AS.get(failure["kind"], "failed")
            steps = max(self.trial.steps, _step_of(failure))
            self.trial = replace(self.trial, state=state, reason=failure["reason"], steps=steps)
            self.write(lambda coordinator: coordinator.keep_traceback(failure.get("traceback_text", "")))
            return
        state, reason = ("finished", "") if ending["status"] == "finished" else stopped
        self.trial = replace(
            self.trial,
            state=state,
            reason=reason,
            metrics=dict(ending["metrics"]),
            weights_sha256=ending["weights_sha256"],
            steps=ending["step"],
            samples=ending["samples"],
            samples_per_second=ending["samples_per_second"],
            peak_memory_bytes=ending["peak_memory_bytes"],
            checkpoint=ending["checkpoint"],
        )

    def end(self, state: TrialState, reason: str) -> None:
        """End or pause it without a report from its workers."""
        self.lose_group()
        self.stopping, self.rung, self.is_reported = None, None, False
        self.trial = replace(self.trial, state=state, reason=reason)

    def report(self) -> TrialReport:
        """Return the current report for Tune."""
        if self.rung is not None and not self.has_ended and self.stopping is None:
            self.is_reported = True
            return TrialReport("running", {**self.trial.metrics, **self.rung}, self.trial.checkpoint)
        return TrialReport(self.trial.state, end_values(self.trial, self.reached))


def end_values(trial: Trial, rung: Mapping[str, float]) -> dict[str, float]:
    """Return Tune's result of an ended trial: its metrics, and the amount trained in each budget unit.

    Args:
        rung: the values at the last rung that it reached, if any. They are the amounts of a trial that did not finish.
    """
    amounts = {unit: rung.get(unit, 0.0) for unit in ("samples", "epochs", "seconds")}
    if trial.state == "finished":
        own = {"samples": trial.samples, "epochs": trial.metrics.get("epoch", 0.0), "seconds": trial.seconds}
        amounts = {unit: max(amount, float(own[unit])) for unit, amount in amounts.items()}
    return {**trial.metrics, **amounts}


def _step_of(failure: Mapping[str, Any]) -> int:
    """Return the step at which training diverged, parsed from the reason; 0 if the reason contains none.

    Metrics are only reported at some steps, the last of which may be long before.
    """
    found = _AT_STEP.search(failure["reason"]) if failure["kind"] == "diverged" else None
    return int(found[1]) if found else 0
