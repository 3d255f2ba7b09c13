"""Cost of a run: where the unit-seconds went since its workers were asked for. Kept by the coordinator."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.durable import write_durably
from paceline.tracking import metrics
from paceline.tracking.costs import COST_FILE, RUN_PARTS, Goal, Ledger, Reached, Unit

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

SAVE_SECONDS = 10.0
"""Seconds between two writes of the ledger while the run continues: a driver that is killed loses no more than that."""


def unit_of(config: "ExperimentConfig", uses_gpu: bool) -> tuple[Unit, float]:
    """Return the unit that is counted, and the number of units that all workers of a training have together.

    Args:
        uses_gpu: whether they train on GPUs.
    """
    scaling = config.scaling
    workers = max(1, scaling.num_workers)
    if not uses_gpu:
        return "core", workers * scaling.cpus_per_worker
    return "GPU", workers * (1.0 if scaling.gpus_per_worker == "auto" else scaling.gpus_per_worker)


def _launch_id() -> str:
    return f"launch-{time.time_ns()}"


@dataclass(frozen=True)
class CostUnits:
    """Units in which the cost of a launch is counted. Made on the driver, when it asks for the workers."""

    unit: Unit
    units: float
    """Number of units that all workers have together."""
    price_per_hour: float | None = None
    goal: Goal | None = None
    since: float = field(default_factory=time.monotonic)
    """Time at which the workers were asked for, of `time.monotonic`, which is one clock for all processes of a node."""
    launch: str = field(default_factory=_launch_id)
    """Id of the launch, by which a coordinator that was started again recognises it."""
    workers: int = 1
    """Number of workers that have the units together; for an elastic run, the maximum."""

    @property
    def allocated(self) -> float:
        """Unit-seconds so far, if all workers have been there all the time."""
        return self.units * (time.monotonic() - self.since)


class RunCosts:
    """Records when the workers started, and how their time was divided, as they report it."""

    def __init__(self, folder: Path, counting: CostUnits) -> None:
        """Continue with what earlier launches have left in the folder."""
        self._file = folder / COST_FILE
        self._counting = counting
        self._units = counting.units
        """Number of units of the present group of workers."""
        self._parts: dict[str, float] = dict.fromkeys(RUN_PARTS, 0.0)  # unit-seconds
        self._spent = 0.0
        """Unit-seconds of all parts, and of the time that the workers themselves report."""
        self._part, self._since = "startup", counting.since
        self._reached: Reached | None = None
        self._joules: list[float] = []
        """Joules of each group of workers so far, if the devices report them."""
        self._has_joules = False
        self._saved = time.monotonic()
        self._earlier = self._read()

    def begin(self, workers: int | None = None) -> None:
        """Note that the workers have started; again, if some were lost.

        Args:
            workers: number of workers; None: as many as were asked for.
        """
        self._has_joules = False
        is_first = self._part == "startup"
        self._enter("broken_off")  # unless they tell how it splits
        before, self._units = self._units, self._counting.units * (workers or self._counting.workers)
        self._units /= self._counting.workers
        if is_first:  # those that did not come have not been held either
            self._parts["startup"] *= self._units / before
            self._spent *= self._units / before
        self._save_if_possible()  # a coordinator that is started again does not hear of these workers

    def measure(self, step: int, values: Mapping[str, float], age_seconds: float = 0.0) -> None:
        """Take in the metrics of a step.

        Args:
            age_seconds: seconds since they were taken: on a busy machine, those of workers take seconds to arrive.
        """
        if metrics.ENERGY_JOULES in values:  # since these workers began
            self._joules[len(self._joules) - self._has_joules :] = [values[metrics.ENERGY_JOULES]]
            self._has_joules = True
        goal = self._counting.goal
        if goal is not None and self._reached is None and goal.is_reached(values):
            allocated = max(0.0, self._allocated - age_seconds * self._units)
            self._reached = Reached(allocated, self._all_joules, step=step)

    def end(self, seconds: Mapping[str, float], elapsed: float | None = None) -> None:
        """Note that training is over.

        Args:
            seconds: seconds of each part of the workers' time, as they measured them; empty if they report none.
            elapsed: total seconds of the workers; None: the sum of `seconds`. The rest of the time since they began was
                spent on passing on their report.
        """
        if seconds:
            around = time.monotonic() - self._since - (sum(seconds.values()) if elapsed is None else elapsed)
            self._parts["closing"] += max(0.0, around) * self._units
            self._part = ""  # theirs
            for part, spent in seconds.items():
                self._parts[part if part in RUN_PARTS else "training"] += spent * self._units
        self._enter("closing")
        self._save_if_possible()  # a launch that only records this training has nothing else to go by

    def ledger(self, allocated: float | None = None) -> Ledger:
        """Return the cost of all launches, of this one until now.

        Args:
            allocated: unit-seconds of this launch, as the process that asked for the workers has measured them.
        """
        return self._own(self._allocated if allocated is None else allocated).after(self._earlier)

    def save_sometimes(self) -> None:
        """Write the ledger if the last time was at least `SAVE_SECONDS` ago. A full disk is reported elsewhere."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self._save_if_possible()

    def save(self, ledger: Ledger) -> None:
        """Write the ledger.

        Raises:
            OSError: the disk is full or gone.
        """
        earlier = self._earlier.to_json() if self._earlier is not None else None
        now = {
            "units": self._units,
            "parts": self._parts,
            "spent": self._spent,
            "part": self._part,
            "since": self._since,
            "joules": self._joules,
            "has_joules": self._has_joules,
            "reached": asdict(self._reached) if self._reached is not None else None,
        }
        content = {**ledger.to_json(), "launch": self._counting.launch, "now": now, "earlier": earlier}
        write_durably(self._file, json.dumps(content, indent=1).encode())

    def _save_if_possible(self) -> None:
        self._saved = time.monotonic()
        with suppress(OSError):
            self.save(self.ledger())

    @property
    def _all_joules(self) -> float | None:
        return sum(self._joules) if self._joules else None

    @property
    def _running(self) -> float:
        """Unit-seconds since the present part began."""
        return (time.monotonic() - self._since) * self._units

    @property
    def _allocated(self) -> float:
        """Unit-seconds of this launch until now."""
        return self._spent + self._running

    def _enter(self, part: str) -> None:
        running = self._running
        if self._part:
            self._parts[self._part] += running
        self._spent += running
        self._part, self._since = part, time.monotonic()

    def _own(self, allocated: float) -> Ledger:
        counting = self._counting
        parts = {**self._parts, self._part: self._parts[self._part] + self._running}
        numbers = parts, self._all_joules, counting.price_per_hour, counting.goal, self._reached
        return Ledger(counting.unit, allocated, *numbers)

    def _read(self) -> Ledger | None:
        """Return the cost of earlier launches. Take over the state of a coordinator of this launch that died."""
        ledger = Ledger.read(self._file.parent)
        if ledger is None:
            return None
        try:
            content: dict[str, Any] = json.loads(self._file.read_bytes())
            if content.get("launch") != self._counting.launch:
                return ledger
            earlier = Ledger.from_json(content["earlier"]) if content["earlier"] else None
            self._take_over(content["now"])
        except (OSError, ValueError, KeyError, TypeError):  # damaged
            return None
        return earlier

    def _take_over(self, now: Mapping[str, Any]) -> None:
        """Continue from the state of the coordinator that this one replaces; the workers are still at work, or have
        started since."""
        reached = now["reached"]
        self._reached = Reached(**reached) if reached is not None else None
        self._joules, self._has_joules = list(now["joules"]), bool(now["has_joules"])
        self._units, self._spent = float(now["units"]), float(now["spent"])
        self._parts = {part: float(now["parts"][part]) for part in RUN_PARTS}
        self._part, self._since = str(now["part"]), float(now["since"])
        if self._part == "startup":  # they may have come since
            self._enter("broken_off")
