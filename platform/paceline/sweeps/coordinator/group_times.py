"""Time accounting of the worker groups: startup, waiting, trials, shutdown."""

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.sweeps.log_entry import LogEntry
from paceline.tracking import metrics
from paceline.tracking.costs import Goal, Reached
from paceline.tracking.metric_points import MetricReading

STARTUP, WAITING, SHUTDOWN = "startup", "waiting", "shutdown"


@dataclass(frozen=True)
class Spent:
    """Unit-seconds of this launch's groups until now. Travels to the driver."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """What went into no trial: `startup`, `waiting` and `shutdown`."""
    trials: Mapping[str, float] = field(default_factory=dict)
    """By trial, all of its attempts together."""
    joules: float | None = None
    """Of all attempts together, as far as their devices tell."""
    reached: Reached | None = None
    """What was spent by the time at which a trial reached the goal for the first time."""


@dataclass
class _Group:
    units: float
    since: float
    part: str = STARTUP
    trial: str = ""


@dataclass
class _Stay:
    """Of a group, from the moment it is asked for until nothing is left of it."""

    units: float
    begin: float
    end: float = math.inf

    def until(self, moment: float) -> float:
        """Unit-seconds that it had by a moment."""
        return self.units * max(0.0, min(self.end, moment) - self.begin)


class GroupTimes:
    """Follows each group of each slot from its start to its end.

    All of it is kept as entries for the sweep's log, which a coordinator that is started again goes over.
    """

    def __init__(self, goal: Goal | None = None) -> None:
        self._goal = goal
        self._reached: Reached | None = None
        self._reached_at = math.inf
        """When the goal was reached first, as far as is known."""
        self._groups: dict[tuple[int, int], _Group] = {}
        self._stays: dict[tuple[int, int], _Stay] = {}
        self._parts = {STARTUP: 0.0, WAITING: 0.0, SHUTDOWN: 0.0}
        self._trials: dict[str, float] = {}
        self._joules: dict[tuple[str, int], float] = {}
        self._attempts: dict[str, int] = {}
        """The newest attempt of each trial that tells its energy, until its group turns to something else."""
        self._entries: list[LogEntry] = []

    def start(self, slot: int, generation: int, units: float) -> None:
        """A group of so many cores or GPUs is asked for."""
        self._note("start", slot, generation, units=units)

    def turn_to(self, slot: int, generation: int, part: str, trial: str = "") -> None:
        """A group begins with something else: with a trial, or with another part; one that is to leave stays at that.

        Args:
            trial: id of the trial; empty for a part.
        """
        group = self._groups.get((slot, generation))
        if group is None or group.part == SHUTDOWN or (group.part, group.trial) == (part, trial):
            return
        attempt = self._attempts.pop(group.trial, None)
        joules = None if attempt is None else [group.trial, attempt, self._joules[group.trial, attempt]]
        self._note("turn", slot, generation, part=part, trial=trial, joules=joules)

    def end(self, slot: int, generation: int) -> None:
        """Nothing is left of a group."""
        self._note("end", slot, generation)

    def new_entries(self) -> list[LogEntry]:
        """What is to be added to the log since the last call."""
        entries, self._entries = self._entries, []
        return entries

    def replay(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Go over the contents of entries of the log; groups that have not ended are still there."""
        for content in entries:
            with suppress(KeyError, TypeError, ValueError):  # a damaged entry costs its seconds alone
                self._apply(content)

    def _note(self, what: str, slot: int, generation: int, **details: Any) -> None:
        content = {"what": what, "slot": slot, "generation": generation, "at": time.monotonic(), **details}
        self._entries.append(("group_time", content))
        self._apply(content)

    def _apply(self, content: Mapping[str, Any]) -> None:
        what, key, now = content["what"], (content["slot"], content["generation"]), content["at"]
        group = self._groups.get(key)
        if what == "start" and key not in self._stays:
            self._groups[key] = _Group(content["units"], now)
            self._stays[key] = _Stay(content["units"], now)
        elif what == "turn" and group is not None:
            self._book(group, now)
            group.part, group.trial = content["part"], content["trial"]
            if content["joules"] is not None:
                trial, attempt, joules = content["joules"]
                self._joules[trial, attempt] = joules
        elif what == "end" and group is not None:
            self._book(group, now)
            self._stays[key].end = now
            del self._groups[key]
        elif what == "reached":
            self._reached, self._reached_at = Reached(**content["reached"]), now

    def measure(self, trial: str, attempt: int, reading: MetricReading) -> None:
        """Take in the metrics of a trial: its energy, and whether the goal is reached."""
        if metrics.ENERGY_JOULES in reading.values:  # since the attempt began
            self._joules[trial, attempt] = reading.values[metrics.ENERGY_JOULES]
            self._attempts[trial] = attempt
        if self._goal is not None and self._goal.is_reached(reading.values):
            self._note_reached(trial, reading)

    def _note_reached(self, trial: str, reading: MetricReading) -> None:
        """What was spent when the values were taken. They may have been on their way for seconds, and those of another
        trial, which had them earlier, may still be."""
        moment = time.monotonic() - reading.age_seconds
        if moment >= self._reached_at:
            return
        seconds = sum(stay.until(moment) for stay in self._stays.values())
        joules = self._reached.joules if self._reached is not None else self._all_joules
        self._reached, self._reached_at = Reached(seconds, joules, trial=trial, step=reading.step), moment
        content = {"what": "reached", "slot": -1, "generation": -1, "at": moment, "reached": asdict(self._reached)}
        self._entries.append(("group_time", content))

    def spent(self) -> Spent:
        """All until now."""
        for group in self._groups.values():
            self._book(group, time.monotonic())
        return Spent(dict(self._parts), dict(self._trials), self._all_joules, self._reached)

    @property
    def _all_joules(self) -> float | None:
        return sum(self._joules.values()) if self._joules else None

    def _book(self, group: _Group, now: float) -> None:
        seconds, group.since = (now - group.since) * group.units, now
        if group.trial:
            self._trials[group.trial] = self._trials.get(group.trial, 0.0) + seconds
        else:
            self._parts[group.part] += seconds
