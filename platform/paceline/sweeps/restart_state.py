"""State of a launch in the sweep's log, from which a coordinator that is started again takes over its slots.

Worker groups and Ray Tune outlive the coordinator's process. It finds in the log which group each slot has, which trial
is at work there in which attempt, and whether Tune or a scheduler has decided something that its workers do not know.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from paceline.sweeps.messages import GroupShape
from paceline.sweeps.states import ATTEMPT, SLOT, TRIAL, AttemptState, SlotState, TrialState

LogEntry = tuple[str, Mapping[str, Any]]
"""Kind and content of an entry of the sweep's log."""
_LAUNCH = "launch"


@dataclass
class SavedSlot:
    """The fields of a slot, and of its worker group, that the log has."""

    number: int
    state: SlotState = "empty"
    shape: GroupShape | None = None
    """Shape of the group that the slot wants; None if it wants none."""
    generation: int = 0
    """Counts the groups that it has wanted."""
    incarnation: int = 0
    """Counts the starts of this generation's group: Ray Train starts it again when it lost a process."""
    idle_starts: int = 0
    """Counts these starts since the group was last at work on a trial."""
    was_used: bool = False
    """True if a trial has run in this generation's group."""
    has_lived: bool = False
    """True if there was ever a group here."""
    taken: int = 0
    """Counts the trials that the group has taken."""

    def saved(self) -> dict[str, Any]:
        """Return these fields alone, without those of the coordinator's slot."""
        return {name: getattr(self, name) for name in _SLOT_FIELDS}

    def entry(self) -> LogEntry:
        """The entry of the log."""
        return "slot", {**self.saved(), "shape": None if self.shape is None else asdict(self.shape)}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "SavedSlot":
        """The inverse of `entry`."""
        shape = content["shape"]
        return cls(**{**content, "state": _one_of(SLOT, content), "shape": shape and GroupShape(**shape)})


@dataclass
class SavedAttempt:
    """The fields of a trial under way that the log has."""

    trial_id: str
    state: AttemptState = "waiting"
    slot: int | None = None
    """The number of its slot; None while it has none."""
    displacements: int = 0
    """Counts the slots that it has lost since a group was at work on it."""
    begun: float | None = None
    """Time at which its current group took it, by `time.monotonic`, one clock for all processes of a node; None if no
    group has it."""
    failures: int = 0
    """Counts the deaths of its workers."""
    rung: dict[str, float] | None = None
    """The values at the rung where it waits for the decision whether to continue."""
    answered_step: int | None = None
    """The step of the last rung at which it was allowed to continue since it has its slot."""
    stopping: tuple[TrialState, str] | None = None
    """The state, and the reason, that it is to have once its workers have released it."""
    needs_fresh_processes: bool = False
    """True if no other trial may have run in its processes, or may do so after it."""

    def saved(self) -> dict[str, Any]:
        """Return these fields alone, without those of the coordinator's trial."""
        return {name: getattr(self, name) for name in _ATTEMPT_FIELDS}

    def entry(self) -> LogEntry:
        """The entry of the log."""
        return "attempt", self.saved()

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "SavedAttempt":
        """The inverse of `entry`."""
        stopping = content["stopping"]
        if stopping is not None:
            state, reason = stopping
            stopping = _one_of(TRIAL, {"state": state}), str(reason)
        return cls(**{**content, "state": _one_of(ATTEMPT, content), "stopping": stopping})


_SLOT_FIELDS = tuple(each.name for each in fields(SavedSlot))
_ATTEMPT_FIELDS = tuple(each.name for each in fields(SavedAttempt))


def _one_of(states: Mapping[Any, object], content: Mapping[str, Any]) -> Any:
    if content["state"] not in states:
        raise ValueError(content["state"])
    return content["state"]


@dataclass
class RestartState:
    """Contents of the log about a launch, the newest state of each thing."""

    id: str
    slots: dict[int, SavedSlot] = field(default_factory=dict)
    attempts: dict[str, SavedAttempt] = field(default_factory=dict)
    """By trial."""
    workers: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Slot, generation and pickled handle of each worker that came."""
    group_times: list[Mapping[str, Any]] = field(default_factory=list)
    """See `sweep_costs.GroupTimes`."""
    over: str = ""
    fault: str = ""

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """Apply an entry of the log, unless it belongs to another launch whose coordinator outlived its driver.

        Raises:
            KeyError, TypeError, ValueError, IndexError: the entry is damaged.
        """
        if content.get(_LAUNCH, self.id) != self.id:
            return
        content = {key: value for key, value in content.items() if key != _LAUNCH}
        if kind == "slot":
            slot = SavedSlot.read(content)
            self.slots[slot.number] = slot
        elif kind == "attempt":
            attempt = SavedAttempt.read(content)
            self.attempts[attempt.trial_id] = attempt
        elif kind == "worker":
            self.workers.append(
                (content["slot"], content["generation"], base64.b64decode(content["handle"], validate=True))
            )
        elif kind == "group_time":
            self.group_times.append(content)
        elif kind == "over":
            self.over, self.fault = str(content["over"]), str(content["fault"])

    def under_way(self, trial_id: str) -> SavedAttempt | None:
        """Return the attempt at a trial if it has a slot or is to get another one; else None."""
        attempt = self.attempts.get(trial_id)
        return None if attempt is None or attempt.state == "waiting" else attempt


def of_launch(entry: LogEntry, launch_id: str) -> LogEntry:
    """Return an entry with the id of its launch."""
    kind, content = entry
    return kind, {**content, _LAUNCH: launch_id}


def launch_entry(launch_id: str) -> LogEntry:
    """Return the entry that begins a launch. Earlier entries belong to other launches, whose groups are gone."""
    return "launch", {"id": launch_id}


def worker_entry(slot: int, generation: int, handle: bytes) -> LogEntry:
    """The entry of a worker's actor, as its pickled handle."""
    return "worker", {"slot": slot, "generation": generation, "handle": base64.b64encode(handle).decode()}


def is_whole(kind: str, content: Mapping[str, Any]) -> bool:
    """Return whether an entry has all that its kind needs; one of a kind that is not known here has."""
    if kind == "launch":
        return isinstance(content.get("id"), str)
    try:
        RestartState(content.get(_LAUNCH, "")).take(kind, content)
    except (KeyError, TypeError, ValueError, IndexError):
        return False
    return True


class SavedStates:
    """Newest states of slots and trials in the log, so that only changes are added."""

    def __init__(self) -> None:
        self._saved: dict[object, object] = {}

    def changes(
        self, slots: Iterable[SavedSlot], attempts: Iterable[SavedAttempt], over: str, fault: str
    ) -> list[LogEntry]:
        """Return entries for all changes since the last call, and count these as written."""
        entries = [slot.entry() for slot in slots if self._has_changed(slot.number, slot.saved())]
        entries += [each.entry() for each in attempts if self._has_changed(each.trial_id, each.saved())]
        if self._has_changed("over", (over, fault)):
            entries.append(("over", {"over": over, "fault": fault}))
        return entries

    def forget(self, trial_id: str) -> None:
        """Forget a trial that has ended."""
        self._saved.pop(trial_id, None)

    def clear(self) -> None:
        """Have everything written again: the disk did not take it."""
        self._saved.clear()

    def _has_changed(self, key: object, state: object) -> bool:
        has_changed = self._saved.get(key) != state
        self._saved[key] = state
        return has_changed
