"""One launch of a sweep: everything that is settled before the first process is started, and its slots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.cluster.preflight import Resources, cluster_resources
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import SUMMARY, writable
from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.cluster.waiting_for_resources import ready
from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.sweeps.listener import SweepListener
from paceline.sweeps.planning.sizing import TrialConfigs, first_rung, fitting_shapes, group_shape, slots_for
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import SweepHistory
from paceline.sweeps.trial import PlannedTrial, Trial


@dataclass(frozen=True)
class SweepLaunch:
    """Everything that is settled before the first process is started."""

    config: ExperimentConfig
    sweep: SweepConfig
    claimed: ClaimedRun[SweepFolder]
    uri: str
    planned_trials: tuple[PlannedTrial, ...]
    """Trials that are known in advance; none with a search that chooses them while the sweep continues."""
    skipped: tuple[Trial, ...]
    configs: TrialConfigs
    history: SweepHistory
    """History of earlier launches."""
    address: str | None
    listener: SweepListener
    close_seconds: float
    working_folder: Path
    """Working folder of the command; paths in the config are relative to it."""
    wait_seconds: float = 0.0
    """Time to wait for a cluster that lacks room."""
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)
    """Predicted memory of one worker in bytes, by trial id; only for trials for which it is known."""
    earlier: tuple[SweepConfig, ...] = ()
    """The sections `sweep` that the sweep had before its extensions, the first one first."""

    @property
    def folder(self) -> SweepFolder:
        """Folder of the sweep."""
        return self.claimed.folder

    def conclude(self, summary: str) -> None:
        """Write down that the sweep is finished: its command has answered, and the same command starts a new one.

        Args:
            summary: the result in one line.

        Raises:
            EnvironmentFault: the folder cannot be written to.
        """
        with writable(self.folder.path):
            self.folder.write(status="finished", **{SUMMARY: summary})

    @property
    def place(self) -> Path | str:
        """The sweep's folder, or its address in an object store."""
        store = self.claimed.store
        return self.folder.path if store is None else str(store.shown_address())

    @property
    def left(self) -> list[PlannedTrial]:
        """The trials that have not ended, those that were begun first; with the values that they have now."""
        known = self.history.trials
        planned_trials = [PlannedTrial(p.id, known[p.id].params) if p.id in known else p for p in self.planned_trials]
        left = [planned for planned in planned_trials if planned.id not in self.history.ended]
        return sorted(left, key=lambda planned: planned.id not in known)

    @property
    def has_work(self) -> bool:
        """True if there is a trial left to run; with a search that chooses them, there may be."""
        return bool(self.left) or self.sweep.search == "optuna"

    @property
    def total(self) -> int:
        """Number of trials that there will be at most, without skipped ones."""
        return len(self.planned_trials) or (self.sweep.num_samples or 0) * self.sweep.seeds


class SlotPlan:
    """Slots and worker groups of a launch, and its rungs.

    Raises:
        EnvironmentFault: there is less than the sweep needs.
        ConfigError: the first rung has to be given.
    """

    def __init__(self, launch: SweepLaunch, available: Resources) -> None:
        section, planned_trials = launch.sweep, launch.left
        where = "the cluster" if on_cluster(launch.address) else "this machine"
        self.available = available
        self.shapes = fitting_shapes(launch.configs.of(planned_trials), available, where)
        self.slots = slots_for(section, self.shapes, available, len(planned_trials) or launch.total)
        self.length, self.first_rung = 0.0, 0.0
        self.rungs: dict[str, Any] | None = None
        if section.scheduler != "none":
            self.length = launch.configs.longest(launch.planned_trials, section.budget_unit)
            self.first_rung = first_rung(section, self.length)
            factor = section.rung_factor if section.scheduler == "asha" else None
            self.rungs = {"first": self.first_rung, "factor": factor, "unit": section.budget_unit}


def ready_to_sweep(launch: SweepLaunch) -> None:
    """Return once the cluster can run the worker groups of a sweep.

    Raises:
        EnvironmentFault: it cannot, or not within the sweep's `wait_seconds`.
    """
    available, section = cluster_resources(), launch.sweep
    trials = max(1, len(launch.left) or launch.total)
    slots = 1 if section.slots == "auto" else min(section.slots, trials)
    shapes = dict.fromkeys(group_shape(each, available) for each in launch.configs.of(launch.left))
    ready([each.request(slots) for each in shapes], launch.config, launch.wait_seconds, launch.listener)
