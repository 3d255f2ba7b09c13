"""Messages between the processes of a sweep: Tune's trainables, the coordinator, the worker groups and the driver."""

from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.cluster.placement import Request
from paceline.cluster.run_events import START, Event, EventCursor
from paceline.storage.address import RunStore
from paceline.sweeps.trial import PlannedTrial, Trial
from paceline.tracking.costs import Unit
from paceline.tracking.run_record import RunRecord


@dataclass(frozen=True)
class GroupShape:
    """Number and resources of the workers of a group. Trials of one shape take turns in one group."""

    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    """0: the workers train on CPU."""
    placement: str

    @property
    def cpus(self) -> float:
        """Cores that the group reserves."""
        return self.num_workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs that the group reserves."""
        return self.num_workers * self.gpus_per_worker

    @property
    def has_whole_gpus(self) -> bool:
        """True if it trains on GPUs, and shares none of them."""
        return self.gpus_per_worker >= 1 and float(self.gpus_per_worker).is_integer()

    def request(self, groups: int = 1) -> Request:
        """So many of these groups, as a request to the cluster's nodes."""
        return Request(self.num_workers, self.cpus_per_worker, self.gpus_per_worker, self.placement, groups)

    def units(self, unit: Unit) -> float:
        """Return the units that the group reserves; a group on CPU costs no GPUs."""
        return self.gpus if unit == "GPU" else self.cpus


@dataclass(frozen=True)
class TrialSpec:
    """A trial, with everything settled that its workers and its record need."""

    planned: PlannedTrial
    shape: GroupShape
    needs_fresh_processes: bool
    """True if no other trial may have run in its processes before."""
    worker_spec: bytes
    """The pickled `TrialWorkerSpec`; opened by the workers alone."""
    record: RunRecord
    folder: str
    """Folder of the trial's journal and checkpoints."""
    total_steps: int | None
    timeout_seconds: float
    """Time that a collective operation of its workers may take."""
    store: RunStore | None = None
    """The trial's place when that is in an object store."""


@dataclass(frozen=True)
class Attempt:
    """An attempt at a trial, as a worker group takes it from the coordinator."""

    number: int
    """Counts what the group has taken, from 1."""
    trial_id: str
    attempt: int
    worker_spec: bytes
    timeout_seconds: float


@dataclass(frozen=True)
class WantedGroup:
    """The worker group that a slot of the coordinator wants to have."""

    slot: int
    generation: int
    """Grows whenever the slot wants another group; groups of earlier generations leave by themselves."""
    shape: GroupShape | None
    """None: the slot needs no group any more."""


INTERRUPTED = "interrupted"
"""The reason why a sweep is over that its user has ended."""


class ViewCursor(NamedTuple):
    """Position up to which a watcher knows a sweep."""

    events: EventCursor = START
    version: int = 0
    """Grows with every change of a trial."""


UNSEEN = ViewCursor()


@dataclass(frozen=True)
class SweepView:
    """The state of a sweep, for the driver."""

    trials: list[Trial]
    """Trials that have begun, or that an earlier launch has left behind; only those that have changed since the
    watcher's cursor."""
    events: list[Event]
    """Events that the watcher has not seen yet."""
    groups: list[WantedGroup]
    over: str = ""
    """The reason why the sweep ends before its last trial: a stop condition, or the user; empty while it continues."""
    fault: str = ""
    """The reason why the sweep cannot continue; empty when it can."""
    disk_full: str = ""
    """The reason why trials are left for a later launch: a disk was full; empty when none was."""
    busy: int = 0
    """Number of slots with a trial that a worker group has taken, and that has not ended there."""
    cursor: ViewCursor = UNSEEN
    """Named by the watcher the next time, to be sent only what is newer."""


@dataclass(frozen=True)
class TrialReport:
    """Report of a trial to Tune, at a rung or at its end."""

    state: str
    values: dict[str, float] = field(default_factory=dict)
    """`samples`, `epochs`, `seconds`, and the newest value of each metric."""
    checkpoint: str = ""
    """The newest one at a rung."""

    @property
    def is_over(self) -> bool:
        """True if the trial has ended, or will not continue in this launch."""
        return self.state != "running"
