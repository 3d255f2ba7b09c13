"""Time accounting of the worker groups: startup, waiting, trials, shutdown."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """Follows each group of each slot from its start to its end."""

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

    def start(self, slot: int, generation: int, units: float) -> None:
        """A group of so many cores or GPUs is asked for."""
        now = time.monotonic()
        self._groups[slot, generation] = _Group(units, now)
        self._stays[slot, generation] = _Stay(units, now)

    def turn_to(self, slot: int, generation: int, part: str, trial: str = "") -> None:
        """A group begins with something else: with a trial, or with another part; one that is to leave stays at that.

        Args:
            trial: id of the trial; empty for a part.
        """
        group = self._groups.get((slot, generation))
        if group is None or group.part == SHUTDOWN:
            return
        self._book(group)
        group.part, group.trial = part, trial

    def end(self, slot: int, generation: int) -> None:
        """Nothing is left of a group."""
        group = self._groups.pop((slot, generation), None)
        if group is not None:
            self._book(group)
            self._stays[slot, generation].end = group.since

    def measure(self, trial: str, attempt: int, reading: MetricReading) -> None:
        """Take in the metrics of a trial: its energy, and whether the goal is reached."""
        if metrics.ENERGY_JOULES in reading.values:  # since the attempt began
            self._joules[trial, attempt] = reading.values[metrics.ENERGY_JOULES]
        if self._goal is not None and self._goal.is_reached(reading.values):
            self._note_reached(trial, reading)

    def _note_reached(self, trial: str, reading: MetricReading) -> None:
        """What was spent when the values were taken. They may have been on their way for seconds, and those of another
        trial, which had them earlier, may still be."""
        moment = time.monotonic() - reading.age_seconds
        if moment >= self._reached_at:
            return
        self._reached_at = moment
        seconds = sum(stay.until(moment) for stay in self._stays.values())
        if self._reached is None or seconds < self._reached.seconds:
            joules = self._reached.joules if self._reached is not None else self._all_joules
            self._reached = Reached(seconds, joules, trial=trial, step=reading.step)

    def spent(self) -> Spent:
        """All until now."""
        self._book_all()
        return Spent(dict(self._parts), dict(self._trials), self._all_joules, self._reached)

    @property
    def _all_joules(self) -> float | None:
        return sum(self._joules.values()) if self._joules else None

    def _book_all(self) -> None:
        for group in self._groups.values():
            self._book(group)

    def _book(self, group: _Group) -> None:
        now = time.monotonic()
        seconds, group.since = (now - group.since) * group.units, now
        if group.trial:
            self._trials[group.trial] = self._trials.get(group.trial, 0.0) + seconds
        else:
            self._parts[group.part] += seconds
