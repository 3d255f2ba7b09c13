"""Cost of a sweep: the time of its worker groups by activity, and the ledger over all its launches.

The coordinator tracks the groups, in `GroupTimes`; the driver, which starts and ends them, keeps the ledger.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.durable import write_durably
from paceline.sweeps.messages import GroupShape
from paceline.sweeps.restart_state import LogEntry
from paceline.sweeps.states import ENDED, TROUBLE
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from paceline.tracking.costs import COST_FILE, SWEEP_PARTS, Goal, Ledger, Reached, Unit
from paceline.tracking.metric_points import MetricReading

STARTUP, WAITING, SHUTDOWN = "startup", "waiting", "shutdown"
SAVE_SECONDS = 10.0
"""Time between two writes of the ledger while the sweep continues: a killed driver loses no more of it."""
_Open = Mapping[Unit, Mapping[str, float]]
"""Seconds of trials that have not ended: a later launch knows how they end."""


@dataclass(frozen=True)
class Spent:
    """Unit-seconds of this launch's groups until now. Travels to the driver."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts that went into no trial: `startup`, `waiting` and `shutdown`."""
    trials: Mapping[str, float] = field(default_factory=dict)
    """By trial, all of its attempts together."""
    joules: float | None = None
    """Energy of all attempts together, in joules, as far as their devices report it; None if none does."""
    reached: Reached | None = None
    """Cost by the time at which a trial reached the goal for the first time."""


@dataclass
class _Group:
    units: float
    since: float
    part: str = STARTUP
    trial: str = ""


@dataclass
class _Stay:
    """Period of a group, from its request until its workers have gone."""

    units: float
    begin: float
    end: float = math.inf

    def until(self, moment: float) -> float:
        """Return the unit-seconds up to a moment."""
        return self.units * max(0.0, min(self.end, moment) - self.begin)


class GroupTimes:
    """Follows each group of each slot from its start to its end.

    All times are also entries of the sweep's log, which a restarted coordinator replays.
    """

    def __init__(self, goal: Goal | None = None) -> None:
        self._goal = goal
        self._reached: Reached | None = None
        self._reached_at = math.inf
        """Earliest known time at which the goal was reached; infinity before."""
        self._groups: dict[tuple[int, int], _Group] = {}
        self._stays: dict[tuple[int, int], _Stay] = {}
        self._parts = {STARTUP: 0.0, WAITING: 0.0, SHUTDOWN: 0.0}
        self._trials: dict[str, float] = {}
        self._joules: dict[tuple[str, int], float] = {}
        self._attempts: dict[str, int] = {}
        """Newest attempt of each trial that reports its energy, until its group turns to another trial or part."""
        self._entries: list[LogEntry] = []

    def start(self, slot: int, generation: int, units: float) -> None:
        """Note that a group with `units` cores or GPUs is requested."""
        self._note("start", slot, generation, units=units)

    def turn_to(self, slot: int, generation: int, part: str, trial: str = "") -> None:
        """Note that a group begins with a trial or with another part. A group that shuts down stays in that part.

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
        """Note that the workers of a group have gone."""
        self._note("end", slot, generation)

    def new_entries(self) -> list[LogEntry]:
        """Return the entries to be added to the log since the last call."""
        entries, self._entries = self._entries, []
        return entries

    def replay(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Apply the contents of log entries; groups that have not ended still exist."""
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
        """Add the metrics of a trial: its energy, and the cost if it has reached the goal."""
        if metrics.ENERGY_JOULES in reading.values:  # since the attempt began
            self._joules[trial, attempt] = reading.values[metrics.ENERGY_JOULES]
            self._attempts[trial] = attempt
        if self._goal is not None and self._goal.is_reached(reading.values):
            self._note_reached(trial, reading)

    def _note_reached(self, trial: str, reading: MetricReading) -> None:
        """Note the cost at the time when the values were measured.

        Values may arrive seconds late. Those of another trial that reached the goal earlier may still be on their way.
        """
        moment = time.monotonic() - reading.age_seconds
        if moment >= self._reached_at:
            return
        seconds = sum(stay.until(moment) for stay in self._stays.values())
        joules = self._reached.joules if self._reached is not None else self._all_joules
        self._reached, self._reached_at = Reached(seconds, joules, trial=trial, step=reading.step), moment
        content = {"what": "reached", "slot": -1, "generation": -1, "at": moment, "reached": asdict(self._reached)}
        self._entries.append(("group_time", content))

    def spent(self) -> Spent:
        """Return the unit-seconds and the energy until now."""
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


def unit_of(shapes: Sequence[GroupShape], folder: Path) -> Unit:
    """Return the unit of a launch's cost: GPUs as soon as one of its groups has some, else cores.

    Args:
        shapes: shapes of the groups that are still to train; if empty, the earlier unit is kept.
        folder: folder of the sweep's own record.
    """
    if not shapes and (earlier := Ledger.read(folder)) is not None:
        return earlier.unit
    return "GPU" if any(shape.gpus for shape in shapes) else "core"


class SweepCosts:
    """Adds this launch's costs, as the coordinator measures them, to the ledger of earlier launches.

    Args:
        folder: folder of the sweep's own record.
        allocated: returns the unit-seconds of this launch, as the driver measures them.
        spent: returns the costs that the coordinator has measured.
        tells_joules: returns True if each group had its devices to itself. Otherwise trials that run at the same time
            each report the energy of all processors of the machine, or of the whole GPU that they share.
    """

    def __init__(
        self,
        folder: Path,
        unit: Unit,
        price_per_hour: float | None,
        goal: Goal | None,
        allocated: Callable[[], float],
        spent: Callable[[], Spent],
        tells_joules: Callable[[], bool],
    ) -> None:
        self._file = folder / COST_FILE
        self._unit, self._price_per_hour, self._goal = unit, price_per_hour, goal
        self._allocated, self._spent = allocated, spent
        self._reports_joules = tells_joules
        self._earlier, self._open = _read(folder)
        self._saved = time.monotonic()

    def ledger(self, trials: Iterable[Trial]) -> Ledger:
        """All until now.

        Args:
            trials: all of them, as they stand.
        """
        return self._look(trials)[0]

    def save_sometimes(self, trials: Iterable[Trial]) -> None:
        """Write the ledger if that was long ago. Others report a full disk."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self._saved = time.monotonic()
            try:
                self.save(trials)
            except OSError:
                pass

    def save(self, trials: Iterable[Trial]) -> None:
        """Write the ledger.

        Raises:
            OSError: the disk is full or gone.
        """
        ledger, still_open = self._look(trials)
        write_durably(self._file, json.dumps({**ledger.to_json(), "open": still_open}, indent=1).encode())

    def _look(self, trials: Iterable[Trial]) -> tuple[Ledger, _Open]:
        """The ledger, and the seconds of the trials that have not ended, by unit and id."""
        states = {trial.id: trial.state for trial in trials}
        spent = self._spent()
        own = Ledger(
            self._unit,
            self._allocated(),
            _with_trials(dict.fromkeys(SWEEP_PARTS, 0.0) | dict(spent.parts), spent.trials, states),
            joules=self._reported_joules(spent.joules),
            price_per_hour=self._price_per_hour,
            goal=self._goal,
            reached=spent.reached and replace(spent.reached, joules=self._reported_joules(spent.reached.joules)),
            kinds=SWEEP_PARTS,
        )
        still_open = {unit: dict(seconds) for unit, seconds in self._open.items()}
        add_to = still_open.setdefault(self._unit, {})
        for trial_id, seconds in spent.trials.items():
            add_to[trial_id] = add_to.get(trial_id, 0.0) + seconds
        earlier = self._earlier and _with_ends(self._earlier, self._open, states)
        return own.after(earlier), {unit: _not_ended(seconds, states) for unit, seconds in still_open.items()}

    def _reported_joules(self, joules: float | None) -> float | None:
        return joules if self._reports_joules() else None


def _with_trials(
    parts: Mapping[str, float], trials: Mapping[str, float], states: Mapping[str, str], sign: int = 1
) -> dict[str, float]:
    """The parts with the seconds of trials, each where it belongs by how the trial ended."""
    found = dict(parts)
    for trial_id, seconds in trials.items():
        found[_ending(states.get(trial_id, ""))] += sign * seconds
    return found


def _with_ends(ledger: Ledger, still_open: _Open, states: Mapping[str, str]) -> Ledger:
    """Return a ledger in which the time of open trials is assigned by the state in which they have ended meanwhile."""
    seconds = still_open.get(ledger.unit, {})
    # as it was written, they are among those that did not end
    parts = _with_trials(_with_trials(ledger.parts, seconds, {}, -1), seconds, states)
    others = {unit: _with_ends(other, still_open, states) for unit, other in ledger.others.items()}
    return replace(ledger, parts=parts, others=others)


def _not_ended(seconds: Mapping[str, float], states: Mapping[str, str]) -> dict[str, float]:
    return {trial_id: spent for trial_id, spent in seconds.items() if states.get(trial_id) not in ENDED}


def _ending(state: str) -> str:
    if state in TROUBLE:
        return "failed"
    return state if state in ("finished", "pruned") else "unfinished"


def _read(folder: Path) -> tuple[Ledger | None, _Open]:
    """Read the cost of earlier launches, and of it the seconds of trials that had not ended."""
    ledger = Ledger.read(folder)
    try:
        content: dict[str, Any] = json.loads((folder / COST_FILE).read_bytes())
        return ledger, {unit: dict(seconds) for unit, seconds in content["open"].items()} if ledger else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or damaged: they stay as they were
        return ledger, {}
