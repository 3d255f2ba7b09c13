"""Costs of a run or a sweep: unit-seconds by part, joules and a price. Types and sums."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from paceline.direction import Direction, default_mode
from paceline.tracking import metrics
from paceline.tracking.markdown import escaped, table_row

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

Unit = Literal["core", "GPU"]
"""The device that is counted: GPUs where training uses some, else cores."""
RUN_PARTS: Mapping[str, str] = {
    "startup": "start-up",
    "training": "training",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
    "broken_off": "broken off",
    "closing": "closing",
}
"""Parts of a run's time, and their labels. `startup`: until the first step; `broken_off`: time of processes that died,
or failed, before they reported how it splits; `closing`: after the last step."""
SWEEP_PARTS: Mapping[str, str] = {
    "startup": "start-up",
    "finished": "finished trials",
    "failed": "failed trials",
    "pruned": "pruned trials",
    "unfinished": "other trials",
    "waiting": "waiting for the search",
    "shutdown": "shut-down",
}
"""Parts of a sweep's time. `startup` and `shutdown` are those of its worker groups; `failed` includes trials that ran
out of memory or diverged; `waiting`: groups between two trials."""
COST_FILE = "cost.json"
"""File name of a ledger, next to a record and among a run's artifacts."""
SHOWN_PARTS = 4
"""Parts that a line shows, the largest ones."""
SHOWN_SHARE = 0.005
"""Smaller parts are not shown in a line."""


@dataclass(frozen=True)
class Goal:
    """A value of a metric that training is to reach."""

    metric: str
    value: float
    mode: Direction
    """`min`: it is reached from above; `max`: from below."""

    def is_reached(self, values: Mapping[str, float]) -> bool:
        """Return True if these metrics are as good; a missing one is not."""
        value = values.get(self.metric, float("nan"))
        return value >= self.value if self.mode == "max" else value <= self.value

    def __str__(self) -> str:
        return f"{self.metric} {self.value:g}"


@dataclass(frozen=True)
class Reached:
    """The cost until a goal was reached for the first time."""

    seconds: float
    """Unit-seconds, including failed and abandoned work before."""
    joules: float | None = None
    others: Mapping[Unit, float] = field(default_factory=dict)
    """Seconds of other units, which launches on another kind of device had before."""
    trial: str = ""
    """Id of the sweep's trial that reached the goal; empty for a run."""
    step: int | None = None
    """Optimizer step at which the goal was reached; None if unknown."""

    def after(self, earlier: "Ledger") -> "Reached":
        """Return the same, when all of an earlier ledger of this unit was spent before."""
        seconds = {**earlier.allocations, earlier.unit: self.seconds + earlier.allocated}
        for unit, spent in self.others.items():
            seconds[unit] = seconds.get(unit, 0.0) + spent
        own = seconds.pop(earlier.unit)
        return replace(self, seconds=own, joules=_sum(self.joules, earlier.joules), others=seconds)

    @property
    def by_text(self) -> str:
        """Trial and step as text, such as `, by trial 0003 at step 12`; empty if unknown."""
        trial = f", by trial {self.trial}" if self.trial else ""
        return trial if self.step is None else f"{trial or ','} at step {self.step}"


@dataclass(frozen=True)
class Ledger:
    """The allocated time, and its parts. The parts are measured apart from the whole."""

    unit: Unit
    allocated: float
    """Unit-seconds from the moment the resources were asked for until they were released."""
    parts: Mapping[str, float]
    """Unit-seconds by part, see `RUN_PARTS` and `SWEEP_PARTS`."""
    joules: float | None = None
    """Energy of the devices of all units, in joules; None if they do not report it."""
    price_per_hour: float | None = None
    """Price of one unit; None: not known."""
    goal: Goal | None = None
    reached: Reached | None = None
    """The cost of reaching the goal; None while it was not reached."""
    kinds: Mapping[str, str] = field(default_factory=lambda: RUN_PARTS)
    """The parts that there can be, and their labels."""
    others: Mapping[Unit, "Ledger"] = field(default_factory=dict)
    """Ledgers of launches on another kind of device, by its unit, at the price of then. Their energy, and the
    way to the goal, are in this ledger."""

    @property
    def gap(self) -> float:
        """Share of the allocated time by which the parts miss it, 0 when nothing was allocated."""
        return abs(self.allocated - sum(self.parts.values())) / self.allocated if self.allocated else 0.0

    @property
    def price(self) -> float | None:
        """Price of all that was allocated, each unit at its own price; None where one of them is not known."""
        return self._price_of_all(self.allocations)

    @property
    def allocations(self) -> dict[Unit, float]:
        """Allocated seconds of each unit, its own first."""
        return {self.unit: self.allocated, **{unit: other.allocated for unit, other in self.others.items()}}

    def price_of(self, seconds: float) -> float | None:
        """Return the price of a number of seconds of this unit; None without `price_per_hour`."""
        return None if self.price_per_hour is None else seconds / 3600 * self.price_per_hour

    def share(self, part: str) -> float:
        """Share of the allocated time that a part took, 0 to 1."""
        return self.parts.get(part, 0.0) / self.allocated if self.allocated else 0.0

    def after(self, earlier: "Ledger | None") -> "Ledger":
        """Return the sum with the costs of earlier launches, whatever their unit was."""
        if earlier is None:
            return self
        before = earlier.in_unit(self.unit)
        parts = {part: before.parts.get(part, 0.0) + self.parts.get(part, 0.0) for part in self.kinds}
        reached = before.reached if before.goal == self.goal else None
        return replace(
            self,
            allocated=before.allocated + self.allocated,
            parts=parts,
            joules=_sum(before.joules, self.joules),
            reached=reached or (self.reached.after(before) if self.reached else None),
            others={**before.others, **{unit: own.after(before.others.get(unit)) for unit, own in self.others.items()}},
        )

    def in_unit(self, unit: Unit) -> "Ledger":
        """Return the same as a ledger of another unit, to which this one's is among the others."""
        if unit == self.unit:
            return self
        others = {**self.others, self.unit: replace(self, joules=None, goal=None, reached=None, others={})}
        own = others.pop(unit, None) or Ledger(unit, 0.0, dict.fromkeys(self.kinds, 0.0), kinds=self.kinds)
        spent = self._until(self.reached) if self.reached is not None else {}
        reached = self.reached and replace(self.reached, seconds=spent.pop(unit, 0.0), others=spent)
        return replace(own, joules=self.joules, goal=self.goal, reached=reached, others=others)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are recorded of it, by key."""
        told: dict[str, float | None] = {_seconds_name(unit): spent for unit, spent in self.allocations.items()}
        told |= {"price": self.price, "joules": self.joules}
        if self.reached is not None:
            spent = self._until(self.reached)
            told |= {f"to_target_{_seconds_name(unit)}": seconds for unit, seconds in spent.items()}
            told |= {"to_target_price": self._price_of_all(spent), "to_target_joules": self.reached.joules}
        return {metrics.cost_metric(name): value for name, value in told.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, with the prices and the gap."""
        return {
            "unit": self.unit,
            "allocated_seconds": self.allocated,
            "parts_seconds": dict(self.parts),
            "gap": self.gap,
            "joules": self.joules,
            "price_per_hour": self.price_per_hour,
            "price": self.price,
            "parts_price": {part: self.price_of(seconds) for part, seconds in self.parts.items()},
            "to_target": self._target_json() if self.goal else None,
            "others": {unit: other.to_json() for unit, other in self.others.items()},
        }

    def _target_json(self) -> dict[str, Any]:
        assert self.goal is not None
        goal = {"metric": self.goal.metric, "value": self.goal.value, "mode": self.goal.mode}
        if (reached := self.reached) is None:
            return {**goal, "seconds": None, "joules": None, "others_seconds": {}, "price": None}
        spent = {"seconds": reached.seconds, "joules": reached.joules, "others_seconds": dict(reached.others)}
        price = self._price_of_all(self._until(reached))
        return {**goal, **spent, "price": price, "trial": reached.trial, "step": reached.step}

    @classmethod
    def read(cls, folder: Path) -> "Ledger | None":
        """Read the ledger next to a record; None if it is missing or damaged.

        Args:
            folder: folder of the record.
        """
        try:
            return cls.from_json(json.loads((folder / COST_FILE).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Ledger":
        """Return the ledger that `to_json` wrote.

        Raises:
            KeyError: something is missing.
            TypeError: something that is to be a number is none.
            ValueError: a number is infinite, or the unit none that is known.
        """
        if content["unit"] not in get_args(Unit):
            raise ValueError(f"there is no unit {content['unit']!r}")
        parts, target = _numbers(content["parts_seconds"]), content["to_target"]
        goal = reached = None
        if target is not None:
            goal = Goal(str(target["metric"]), _number(target["value"]), target["mode"])
            if target["seconds"] is not None:
                spent = cast("dict[Unit, float]", _numbers(target.get("others_seconds", {})))
                by = str(target.get("trial", "")), target.get("step")  # older ledgers do not tell
                joules = _number_or_none(target["joules"])
                reached = Reached(_number(target["seconds"]), joules, spent, *by)
        kinds = SWEEP_PARTS if "finished" in parts else RUN_PARTS
        rates = _number_or_none(content["joules"]), _number_or_none(content["price_per_hour"])
        numbers = _number(content["allocated_seconds"]), parts, *rates
        others = {unit: cls.from_json(other) for unit, other in content.get("others", {}).items()}
        return cls(content["unit"], *numbers, goal, reached, kinds, others)

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each line that a terminal or a page shows."""
        if not self.allocated:
            return []
        lines = [("cost", self._spent_text()), *(("also spent", other._spent_text()) for other in self.others.values())]
        if self.others and self.price is not None:
            lines.append(("price", f"{self.price:,.4g} in all"))
        if self.joules is not None:
            lines.append(("energy", f"{self.joules:,.0f} J"))
        return lines + ([("to target", self._target_text(self.goal))] if self.goal else [])

    def markdown(self) -> str:
        """Return the costs as Markdown for a run's page: table of the parts, other figures, and cost to the target."""
        if not self.allocated:
            return ""
        has_price = self.price_per_hour is not None
        rows = [(self.kinds.get(part, part), seconds) for part, seconds in self.parts.items() if seconds]
        heading = ["cost", f"{self.unit}-seconds", "share", *([f"price{self._rate_text()}"] if has_price else [])]
        lines = [table_row(heading), table_row(["---", *["---:"] * (len(heading) - 1)])]
        for label, seconds in [*rows, ("**all**", self.allocated)]:
            price = [f"{self.price_of(seconds):,.4g}"] if has_price else []
            lines.append(table_row([label, f"{seconds:,.1f}", f"{seconds / self.allocated:.0%}", *price]))
        others = [f"{label}: {escaped(text)}" for label, text in self.lines()[1:]]
        return "\n".join(lines) + "".join(f"\n\n{each[:1].upper()}{each[1:]}." for each in others)

    def _target_text(self, goal: Goal) -> str:
        if self.reached is None:
            return f"{goal} was not reached"
        spent = self._until(self.reached)
        amounts = [_amount(seconds, unit) for unit, seconds in spent.items() if seconds or len(spent) == 1]
        joules = f", {self.reached.joules:,.0f} J" if self.reached.joules is not None else ""
        price = _price_text(self._price_of_all(spent))
        return f"{goal} was reached after {' and '.join(amounts)}{price}{joules}{self.reached.by_text}"

    def _spent_text(self) -> str:
        """Return the line about this unit."""
        price = _price_text(self.price_of(self.allocated), self._rate_text())
        return f"{_amount(self.allocated, self.unit)}{price}: {self._parts_text()}"

    def _rate_text(self) -> str:
        return "" if self.price_per_hour is None else f" at {self.price_per_hour:,.4g} per {self.unit}-hour"

    def _until(self, reached: Reached) -> dict[Unit, float]:
        return {self.unit: reached.seconds, **reached.others}

    def _price_of_all(self, spent: Mapping[Unit, float]) -> float | None:
        """Return the price of the seconds of each unit, at that unit's price; None if one price is unknown."""
        ledgers = {self.unit: self, **self.others}
        prices = [ledgers[unit].price_of(seconds) for unit, seconds in spent.items() if seconds] or [self.price_of(0.0)]
        known = [price for price in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    def _parts_text(self) -> str:
        """The largest parts with their shares: `61 % training, 20 % start-up`."""
        largest = sorted(self.parts, key=lambda part: -self.parts[part])[:SHOWN_PARTS]
        shown = [part for part in largest if self.share(part) >= SHOWN_SHARE]
        return ", ".join(f"{100 * self.share(part):.0f} % {self.kinds.get(part, part)}" for part in shown)


def goal_of(config: "ExperimentConfig") -> Goal | None:
    """The config's `tracking.target`; without one, that of `sweep.stop`."""
    modes = dict(config.sweep.objectives) if config.sweep else {}
    for metric, value in (config.tracking.target or {}).items():
        return Goal(metric, value, modes.get(metric) or default_mode(metric))
    if config.sweep is None or config.sweep.stop.target is None:
        return None
    metric, mode = config.sweep.objectives[0]
    return Goal(metric, config.sweep.stop.target, mode)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    if not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return value


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(key): _number(value) for key, value in values.items()}


def _sum(one: float | None, other: float | None) -> float | None:
    known = [each for each in (one, other) if each is not None]
    return sum(known) if known else None


def _amount(seconds: float, unit: Unit) -> str:
    return f"{seconds:,.0f} {unit}-seconds" if seconds >= 100 else f"{seconds:.3g} {unit}-seconds"


def _price_text(price: float | None, rate: str = "") -> str:
    return "" if price is None else f" (price {price:,.4g}{rate})"


def _seconds_name(unit: Unit) -> str:
    return f"{unit.lower()}_seconds"
