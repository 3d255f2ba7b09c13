"""Cost of a sweep over all its launches. Kept by the driver, which starts and ends the worker groups."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.durable import write_durably
from paceline.sweeps.coordinator.group_times import Spent
from paceline.sweeps.messages import GroupShape
from paceline.sweeps.trial import ENDED, TROUBLE, Trial
from paceline.tracking.costs import COST_FILE, SWEEP_PARTS, Goal, Ledger, Unit

SAVE_SECONDS = 10.0
"""How often the ledger is written while the sweep continues: a driver that is killed loses no more of it."""
_Open = Mapping[Unit, Mapping[str, float]]
"""Seconds of trials that have not ended: a later launch knows how they end."""


def unit_of(shapes: Sequence[GroupShape], folder: Path) -> Unit:
    """What a launch of a sweep is counted in: GPUs as soon as one of its groups has some, else cores.

    Args:
        shapes: of the groups that are still to train; where there is none, it stays what it was.
        folder: of the sweep's own record.
    """
    if not shapes and (earlier := Ledger.read(folder)) is not None:
        return earlier.unit
    return "GPU" if any(shape.gpus for shape in shapes) else "core"


class SweepCosts:
    """Adds what the coordinator has seen of this launch to what earlier launches have left.

    Args:
        folder: of the sweep's own record.
        allocated: tells the unit-seconds of this launch, as the driver measures them.
        spent: tells what the coordinator has seen.
        tells_joules: tells whether each group had devices to itself. Trials side by side each tell what all processors
            of the machine have taken, or the whole GPU that they share.
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
        self._tells_joules = tells_joules
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
            joules=self._told(spent.joules),
            price_per_hour=self._price_per_hour,
            goal=self._goal,
            reached=spent.reached and replace(spent.reached, joules=self._told(spent.reached.joules)),
            kinds=SWEEP_PARTS,
        )
        still_open = {unit: dict(seconds) for unit, seconds in self._open.items()}
        add_to = still_open.setdefault(self._unit, {})
        for trial_id, seconds in spent.trials.items():
            add_to[trial_id] = add_to.get(trial_id, 0.0) + seconds
        earlier = self._earlier and _with_ends(self._earlier, self._open, states)
        return own.after(earlier), {unit: _not_ended(seconds, states) for unit, seconds in still_open.items()}

    def _told(self, joules: float | None) -> float | None:
        return joules if self._tells_joules() else None


def _with_trials(
    parts: Mapping[str, float], trials: Mapping[str, float], states: Mapping[str, str], sign: int = 1
) -> dict[str, float]:
    """The parts with the seconds of trials, each where it belongs by how the trial ended."""
    found = dict(parts)
    for trial_id, seconds in trials.items():
        found[_ending(states.get(trial_id, ""))] += sign * seconds
    return found


def _with_ends(ledger: Ledger, still_open: _Open, states: Mapping[str, str]) -> Ledger:
    """A ledger with what its open trials have had, by how those have ended meanwhile."""
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
    """What earlier launches have cost, and of it the seconds of trials that had not ended."""
    ledger = Ledger.read(folder)
    try:
        content: dict[str, Any] = json.loads((folder / COST_FILE).read_bytes())
        return ledger, {unit: dict(seconds) for unit, seconds in content["open"].items()} if ledger else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or damaged: they stay as they were
        return ledger, {}
