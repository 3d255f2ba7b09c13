"""What a coordinator of a sweep that was started again must know of its slots: kept in the sweep's log.

Worker groups and Ray Tune outlive the coordinator's process. It finds in the log which group each slot has, which trial
is at work there in which attempt, and whether Tune or a scheduler has decided something that its workers do not know.
"""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.sweeps.log_entry import LogEntry
from paceline.sweeps.messages import GroupShape

_LAUNCH = "launch"


@dataclass(frozen=True)
class SlotState:
    """A slot and its worker group; see `coordinator.slots.Slot` for the fields."""

    number: int
    shape: GroupShape | None = None
    generation: int = 0
    incarnation: int = 0
    idle_starts: int = 0
    was_used: bool = False
    has_lived: bool = False
    is_retired: bool = False
    taken: int = 0

    def entry(self) -> LogEntry:
        """The state as an entry of the log."""
        return "slot", asdict(self)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "SlotState":
        """The inverse of `entry`."""
        shape = content["shape"]
        return cls(**{**content, "shape": None if shape is None else GroupShape(**shape)})


@dataclass(frozen=True)
class ExecutionState:
    """A trial under way; see `coordinator.trial_run.RunningTrial` for the fields."""

    trial_id: str
    slot: int | None = None
    is_displaced: bool = False
    displacements: int = 0
    begun: float | None = None
    """Of `time.monotonic`, one clock for all processes of a node."""
    failures: int = 0
    is_at_rung: bool = False
    """Whether it stands at the rung that the log has last of it."""
    answered_step: int | None = None
    stopping: tuple[str, str] | None = None
    needs_fresh_processes: bool = False

    def entry(self) -> LogEntry:
        """The state as an entry of the log."""
        return "execution", asdict(self)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "ExecutionState":
        """The inverse of `entry`."""
        stopping = content["stopping"]
        return cls(**{**content, "stopping": None if stopping is None else (str(stopping[0]), str(stopping[1]))})


@dataclass
class LaunchState:
    """What the log says of a launch, the newest state of each thing."""

    id: str
    slots: dict[int, SlotState] = field(default_factory=dict)
    executions: dict[str, ExecutionState] = field(default_factory=dict)
    """By trial."""
    workers: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Slot, generation and pickled handle of each worker that came."""
    group_times: list[Mapping[str, Any]] = field(default_factory=list)
    """See `coordinator.timing.GroupTimes`."""
    over: str = ""
    fault: str = ""

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """Take in an entry of the log, unless it is another launch's, whose coordinator outlived its driver.

        Raises:
            KeyError, TypeError, ValueError, IndexError: it is damaged.
        """
        if content.get(_LAUNCH, self.id) != self.id:
            return
        content = {key: value for key, value in content.items() if key != _LAUNCH}
        if kind == "slot":
            slot = SlotState.read(content)
            self.slots[slot.number] = slot
        elif kind == "execution":
            execution = ExecutionState.read(content)
            self.executions[execution.trial_id] = execution
        elif kind == "worker":
            self.workers.append(
                (content["slot"], content["generation"], base64.b64decode(content["handle"], validate=True))
            )
        elif kind == "group_time":
            self.group_times.append(content)
        elif kind == "over":
            self.over, self.fault = str(content["over"]), str(content["fault"])


def of_launch(entry: LogEntry, launch_id: str) -> LogEntry:
    """An entry with the launch that it belongs to."""
    kind, content = entry
    return kind, {**content, _LAUNCH: launch_id}


def launch_entry(launch_id: str) -> LogEntry:
    """The entry that begins a launch: what comes before it is of others, whose groups are gone."""
    return "launch", {"id": launch_id}


def worker_entry(slot: int, generation: int, handle: bytes) -> LogEntry:
    """The entry of a worker's actor, as its pickled handle."""
    return "worker", {"slot": slot, "generation": generation, "handle": base64.b64encode(handle).decode()}


def over_entry(over: str, fault: str) -> LogEntry:
    """The entry that says why the sweep ends."""
    return "over", {"over": over, "fault": fault}


def is_whole(kind: str, content: Mapping[str, Any]) -> bool:
    """Return whether an entry has all that its kind needs; one of a kind that is not known here has."""
    if kind == "launch":
        return isinstance(content.get("id"), str)
    try:
        LaunchState(content.get(_LAUNCH, "")).take(kind, content)
    except (KeyError, TypeError, ValueError, IndexError):
        return False
    return True
