"""Readings of all ranks and their machines, exchanged at each log together with the loss.

every rank:   on_train_start   (readings -> summed over the ranks together with the loss -> combine)   on_train_end
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan
from statistics import fmean, median
from time import perf_counter
from typing import Any

from paceline.callbacks.callback import Callback, TrainContext
from paceline.engine.dist_context import DistContext
from paceline.engine.meter import Meter, memory_bytes
from paceline.engine.monitoring.gpus import own_gpus
from paceline.engine.monitoring.host import HOST_METRICS, OtherLoad, Reading
from paceline.engine.monitoring.machines import AT_EACH_LOG, BUSY, JOULES, Machines, Rhythm, fields_of
from paceline.engine.monitoring.own_time import OwnTime
from paceline.engine.monitoring.slots import Slots
from paceline.engine.monitoring.stamp import Card, make_card, make_stamp
from paceline.engine.monitoring.stragglers import Straggler, StragglerWatch
from paceline.engine.reporter import Reporter

MEMORY_SECONDS = 0.1
"""Seconds that a reading of this process's memory is reused: it takes as long as some steps of a small model."""
WAITS_FOR_DATA = 0.5
"""Fraction of its own time above which a straggler that waits for data is slow because of the data."""


class HostMonitor(Callback):
    """Reports speed, memory, energy and load of every rank's machine, and warns of stragglers.

    Every rank must build one, and call `readings` and `combine` at the same logs. `MetricLogger` calls both.

    Args:
        own_time: clock that runs while this rank does not wait for others.
        meter: reports the steps over which the run's speed was measured.
        all_gpus: True if this rank computes on all GPUs that it sees.
        system: True to read the machines' own metrics and their energy.
    """

    def __init__(
        self,
        ranks: DistContext,
        reporter: Reporter,
        own_time: OwnTime,
        meter: Meter,
        all_gpus: bool = False,
        system: bool = True,
    ) -> None:
        self._ranks = ranks
        self._reporter = reporter
        self._own_time = own_time
        self._meter = meter
        self._gpus = own_gpus(ranks.device, all_gpus)
        self.cards: list[Card] = ranks.gather_objects(make_card(ranks.device, self._gpus, all_gpus))
        """Cards of all ranks, in order of rank."""
        self._fields = [fields_of(rank, self.cards, system) for rank in range(len(self.cards))]
        self._all_slots, self._few_slots = Slots(self._fields), Slots([AT_EACH_LOG] * len(self.cards))
        self._slots = self._all_slots
        """Slots of the newest readings: `_all_slots` if they include those of the machines."""
        self._rhythm = Rhythm()
        self._stragglers = StragglerWatch()
        self._loads = {card.host: OtherLoad(card.machine_cores) for card in self.cards}
        self._joules: dict[int, float | None] = {}
        """Newest energy in joules of each rank that reports it; None before its first value."""
        if all(len(card.gpus) == card.gpu_count for card in self.cards):  # the energy of some GPUs would say little
            self._joules = {rank: None for rank, names in enumerate(self._fields) if JOULES in names}
        self._gpu_clocks: list[float] = []
        self._memory = 0, 0
        self._memory_is_read_at = -MEMORY_SECONDS

    def on_train_start(self, ctx: TrainContext) -> None:
        """Start to read the machines, and report a first stamp, which remains if the run is killed."""
        self._machines = Machines(self._fields[self._ranks.rank], self._gpus, self._ranks.device)
        if self._ranks.is_first:
            self._reporter.event("ranks", text=ranks_text(self.cards))
        self._report_stamp({})

    def on_train_end(self, ctx: TrainContext) -> None:
        """Report the final stamp, with the steps over which speed was measured."""
        self._report_stamp(self._meter.stretches())

    def readings(self, wait_seconds: float, is_last: bool) -> list[float]:
        """Return this rank's part of the exchange. The device must be idle.

        Args:
            wait_seconds: seconds per optimizer step that this rank waited for data since the last log.
            is_last: True if training ends with this log, so that all readings are taken.
        """
        clock = perf_counter()
        if clock - self._memory_is_read_at >= MEMORY_SECONDS or is_last:
            self._memory, self._memory_is_read_at = memory_bytes(self._ranks.device), clock
        peak, now = self._memory
        self._slots = self._few_slots
        values = {
            "own_seconds": self._own_time.read(),
            "wait_seconds": wait_seconds,
            "peak_memory_bytes": float(peak),
            "memory_bytes": float(now),
            "clock": clock,
        }
        if self._rhythm.is_due or is_last:
            values |= self._machines.look()
            self._slots = self._all_slots
        return self._slots.pack(self._ranks.rank, values)

    def combine(self, sums: Sequence[float]) -> tuple[dict[str, float], dict[str, float]]:
        """Turn the summed readings of all ranks into metrics.

        Returns:
            Metrics of the training, the same on all ranks; and metrics of the machines, if they were read.
        """
        told = self._slots.unpack(sums)
        looked = "own_core_seconds" in told[0]
        self._rhythm.note(told[0]["clock"], looked)
        values = {key: max(each[key] for each in told) for key in ("peak_memory_bytes", "memory_bytes")}
        if self._joules:
            values |= self._energy(told)
        if len(told) > 1:
            values |= rank_metrics(told)
        if not self._ranks.is_first:
            return values, {}
        if len(told) > 1:
            self._warn_of_straggler(told)
        return values, self._machine_metrics(told) if looked else {}

    def _energy(self, told: Sequence[Mapping[str, float]]) -> dict[str, float]:
        self._joules = {rank: told[rank].get(JOULES, before) for rank, before in self._joules.items()}
        known = [joules for joules in self._joules.values() if joules is not None]
        return {"energy_joules": sum(known)} if known and len(known) == len(self._joules) else {}

    def _warn_of_straggler(self, told: Sequence[Mapping[str, float]]) -> None:
        found = self._stragglers.see(own_seconds(told))
        if found is None:
            return
        host, waits = self.cards[found.rank].host, min(told[found.rank]["wait_seconds"] / found.seconds, 1.0)
        text = straggler_text(found, host, waits)
        message = f"{text}, and they wait for it; look at {hint_text(waits)}"
        self._reporter.event("warning", message=message, code="straggler")
        self._reporter.event("straggler", host=host, data_wait_share=waits, text=text, **asdict(found))

    def _machine_metrics(self, told: Sequence[Mapping[str, float]]) -> dict[str, float]:
        self._note_loads(told)
        return self._system_metrics(told)

    def _note_loads(self, told: Sequence[Mapping[str, float]]) -> None:
        for card, each in zip(self.cards, told, strict=True):
            if BUSY in each:
                ours = [values for other, values in zip(self.cards, told, strict=True) if other.host == card.host]
                own = sum(values["own_core_seconds"] for values in ours)
                self._loads[card.host].see(Reading(each["clock"], each[BUSY], own))

    def _system_metrics(self, told: Sequence[Mapping[str, float]]) -> dict[str, float]:
        values: dict[str, float] = {}
        for card, each in zip(self.cards, told, strict=True):
            place = f"system/{card.host}/" if len(self._loads) > 1 else "system/"
            own = {name: value for name, value in each.items() if name in HOST_METRICS or name.startswith("gpu_")}
            values |= {f"{place}{name}": value for name, value in own.items()}
            self._gpu_clocks += [value for name, value in own.items() if name.endswith("_clock_megahertz")]
        return values

    def _report_stamp(self, stretches: Mapping[str, float]) -> None:
        if self._ranks.is_first:
            self._reporter.event("stamp", **self._stamp(stretches))

    def _stamp(self, stretches: Mapping[str, float]) -> dict[str, Any]:
        loads = self._loads.values()
        return {
            **make_stamp(self.cards, self._ranks.device, fmean(self._gpu_clocks) if self._gpu_clocks else None),
            "other_load_start": max((load.at_start for load in loads if load.at_start is not None), default=None),
            "other_load_end": max((load.at_end for load in loads if load.at_end is not None), default=None),
            "warm_up_steps": 0,
            "warm_up_seconds": 0.0,
            "measured_steps": 0,
            "measured_seconds": 0.0,
            **stretches,
        }


def ranks_text(cards: Sequence[Card]) -> str:
    """Return the ranks of each machine as a text: `node-a: 0 1; node-b: 2 3`."""
    places: dict[str, list[str]] = {}
    for rank, card in enumerate(cards):
        places.setdefault(card.host, []).append(str(rank))
    return "; ".join(f"{host}: {' '.join(ranks)}" for host, ranks in places.items())


def own_seconds(told: Sequence[Mapping[str, float]]) -> list[float]:
    """Return each rank's own time per optimizer step in seconds, in order of rank; NaN where it is not known."""
    return [each.get("own_seconds", float("nan")) for each in told]


def rank_metrics(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the spread of the ranks' own times; empty for one rank, or if the time of a rank is not known."""
    seconds = own_seconds(told)
    if len(seconds) == 1 or any(map(isnan, seconds)):
        return {}
    figures = {"min": min(seconds), "median": median(seconds), "max": max(seconds)}
    return {f"rank_seconds/{name}": value for name, value in figures.items()}


def straggler_text(found: Straggler, host: str, waits: float) -> str:
    """Return a text for the user that says which rank is a straggler, and how much slower it is.

    Args:
        waits: fraction of its own time that it waits for data, 0 to 1.
    """
    return (
        f"rank {found.rank} on {host} takes {found.factor:.1f} times as long as the others for its own part of a step "
        f"({found.seconds:.3g} s against {found.others_seconds:.3g} s; {waits:.0%} of it waiting for data)"
    )


def hint_text(waits: float) -> str:
    """Return a text that says where to look for the cause of a straggler."""
    if waits > WAITS_FOR_DATA:
        return "the disk or network that its data come from, data.num_workers and data.cache"
    return "other programs on that machine, and the clock and temperature of its device"
