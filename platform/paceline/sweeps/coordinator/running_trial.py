"""A trial between its first assignment to a slot and its end."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from paceline.sweeps.coordinator.trial_coordinator import TrialCoordinator
from paceline.sweeps.coordinator.write_queue import WriteQueue
from paceline.sweeps.launch_state import ExecutionState
from paceline.sweeps.messages import TrialReport, TrialSpec
from paceline.sweeps.trial import ENDED, Trial, TrialState
from paceline.tracking import metrics
from paceline.tracking.run_record import TAG_LENGTH, param_text

FAILED_AS: dict[str, TrialState] = {"error": "failed", "diverged": "diverged", "oom": "oom", "full_disk": "pending"}
"""The state of a trial whose failure is of this kind. One that found a disk full succeeds once there is room."""
Result = TypeVar("Result")
_AT_STEP = re.compile(r"\bat step (\d+)")


def end_values(trial: Trial, rung: Mapping[str, float]) -> dict[str, float]:
    """What Tune gets about a trial that has ended: its metrics, and how far it came in each unit of a budget.

    Args:
        rung: the values at the rung that it reached last, if any. A trial that did not finish came no further.
    """
    amounts = {unit: rung.get(unit, 0.0) for unit in ("samples", "epochs", "seconds")}
    if trial.state == "finished":
        own = {"samples": trial.samples, "epochs": trial.metrics.get("epoch", 0.0), "seconds": trial.seconds}
        amounts = {unit: max(amount, float(own[unit])) for unit, amount in amounts.items()}
    return {**trial.metrics, **amounts}


def _step_of(failure: Mapping[str, Any]) -> int:
    """The step at which training diverged, as the reason tells it; 0 when it tells none.

    Metrics come at some steps only, the last ones long before it perhaps.
    """
    found = _AT_STEP.search(failure["reason"]) if failure["kind"] == "diverged" else None
    return int(found[1]) if found else 0


@dataclass
class RunningTrial:
    """A trial, its record, and where it stands between Tune and its worker group."""

    spec: TrialSpec | None
    """None: the coordinator was started again, and Tune has not yet asked for the trial since."""
    trial: Trial
    coordinator: TrialCoordinator
    writes: WriteQueue
    """Of its record."""
    slot: int | None = None
    """The number of its slot; None while it has none."""
    begun: float | None = None
    """When its present group took it; None while none has."""
    is_confirmed: bool = False
    """Whether that group has been heard of since: one that died while it waited for a trial is handed one, too."""
    is_displaced: bool = False
    """Whether it has lost its slot, and is to continue in another one."""
    displacements: int = 0
    """How many slots it has lost since a group was at work on it."""
    rung: dict[str, float] | None = None
    """The values at the rung where it waits to be told whether to continue."""
    is_told: bool = False
    """Whether Tune has been told of that rung."""
    reached: dict[str, float] = field(default_factory=dict)
    """The values at the rung that it reached last."""
    answered_step: int | None = None
    """The step of the last rung at which it was allowed to continue since it has its slot."""
    stopping: tuple[TrialState, str] | None = None
    """The state, and the reason, that it is to have once its workers have released it; see `stop`."""
    stopping_since: float = 0.0
    """When it was first told to stop."""
    failures: int = 0
    """How often its workers died."""
    visit: str | None = ""
    """Which of Tune's trainables has it now; None: not known since the coordinator was started again."""
    needs_fresh_processes: bool = False
    """Whether no other trial may have run in its processes, or may do so after it."""
    calls: int = 0
    """How often Tune has asked for it, or released it: only the newest call is waited for."""
    assignments: int = 0
    """How often it was given a slot."""
    changes: list[str] = field(default_factory=list)
    """The values that were changed since it began, and at which step."""

    @property
    def has_ended(self) -> bool:
        """Whether it is over for good."""
        return self.trial.state in ENDED

    @property
    def seconds(self) -> float:
        """Time on worker groups so far."""
        return self.trial.seconds + (time.monotonic() - self.begun if self.begun is not None else 0.0)

    @property
    def has_news(self) -> bool:
        """Whether there is something that Tune does not know: a rung, or that it has released its slot."""
        has_no_slot = self.slot is None and not self.is_displaced
        return has_no_slot or (self.rung is not None and not self.is_told)

    def write(self, what: Callable[[TrialCoordinator], Result]) -> "asyncio.Future[Result]":
        """Have something done with its record, in a thread, after all that was put in before."""
        return self.writes.put(lambda: what(self.coordinator))

    @classmethod
    def recover(
        cls, state: ExecutionState, trial: Trial, coordinator: TrialCoordinator, writes: WriteQueue
    ) -> "RunningTrial":
        """The trial as the coordinator left it that this one replaces; its group is still at work on it."""
        stopping = None if state.stopping is None else (cast(TrialState, state.stopping[0]), state.stopping[1])
        return cls(
            None,
            trial,
            coordinator,
            writes,
            slot=state.slot,
            begun=state.begun,
            is_displaced=state.is_displaced,
            displacements=state.displacements,
            answered_step=state.answered_step,
            stopping=stopping,
            stopping_since=time.monotonic(),
            failures=state.failures,
            visit=None,
            needs_fresh_processes=state.needs_fresh_processes,
        )

    @property
    def state(self) -> ExecutionState:
        """What `recover` needs."""
        return ExecutionState(
            trial_id=self.trial.id,
            slot=self.slot,
            is_displaced=self.is_displaced,
            displacements=self.displacements,
            begun=self.begun,
            failures=self.failures,
            is_at_rung=self.rung is not None,
            answered_step=self.answered_step,
            stopping=self.stopping,
            needs_fresh_processes=self.needs_fresh_processes,
        )

    def stop(self, state: TrialState, reason: str) -> None:
        """It is to have this state once its workers have released it."""
        if self.stopping is None:
            self.stopping_since = time.monotonic()
        self.stopping = state, reason

    def take_slot(self, slot: int) -> None:
        """A worker group is going to take it; called by the slot."""
        self.slot = slot
        self.assignments += 1
        if not self.is_displaced:
            # it may come from another one's checkpoint, whose rungs it was not told anything about
            self.answered_step = self.stopping = None
        self.is_displaced = False
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
        self.slot, self.is_displaced = None, True
        self.displacements += 1
        self.trial = replace(self.trial, state="pending")

    def begin(self) -> None:
        """A group has taken it."""
        self.begun, self.is_confirmed = time.monotonic(), False
        self.trial = replace(self.trial, state="running", attempts=self.trial.attempts + 1)

    def measure(self, step: int, values: Mapping[str, float], samples_per_second: float | None = None) -> None:
        """Take in the metrics of a step."""
        known = self.trial.samples_per_second
        speed = values.get("samples_per_second", known if samples_per_second is None else samples_per_second)
        of_the_trial = {key: value for key, value in values.items() if not key.startswith(metrics.SYSTEM)}
        known_now = {**self.trial.metrics, **of_the_trial}
        steps = max(step, self.trial.steps)
        self.trial = replace(self.trial, steps=steps, metrics=known_now, samples_per_second=speed)

    def wait_at_rung(self, values: dict[str, float]) -> None:
        """It has come to a rung, and waits there."""
        self.rung, self.reached, self.is_told = values, values, False
        self.trial = replace(self.trial, samples=int(values["samples"]))

    def leave_rung(self) -> None:
        """Tune lets it resume from its rung."""
        assert self.rung is not None
        self.answered_step, self.rung, self.is_told = int(self.rung["step"]), None, False

    def stop_clock(self) -> None:
        """Its group has released it."""
        if self.is_confirmed:  # what nobody was at work on took no time
            self.trial = replace(self.trial, seconds=self.seconds)
        self.begun, self.is_confirmed = None, False

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Take in how its workers say that it ended."""
        self.stop_clock()
        stopped: tuple[TrialState, str] = self.stopping or ("paused", "")
        self.stopping, self.rung, self.is_told = None, None, False
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
        """End it, or let it rest, without a word of its workers."""
        self.stop_clock()
        self.stopping, self.rung, self.is_told, self.is_displaced = None, None, False, False
        self.trial = replace(self.trial, state=state, reason=reason)

    def report(self) -> TrialReport:
        """What Tune gets now."""
        if self.rung is not None and not self.has_ended and self.stopping is None:
            self.is_told = True
            return TrialReport("running", {**self.trial.metrics, **self.rung}, self.trial.checkpoint)
        return TrialReport(self.trial.state, end_values(self.trial, self.reached))
