"""One launch of a sweep: everything that is settled before the first process is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.cluster.preflight import writable
from paceline.cluster.run_identity import ClaimedRun
from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.sweeps.listener import SweepListener
from paceline.sweeps.planning.sizing import TrialConfigs
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
    """Those that are known in advance; none with a search that chooses them while the sweep continues."""
    skipped: tuple[Trial, ...]
    configs: TrialConfigs
    history: SweepHistory
    """What earlier launches have left."""
    address: str | None
    listener: SweepListener
    close_seconds: float
    working_folder: Path
    """Of the command; what the config says is relative to it."""
    wait_seconds: float = 0.0
    """How long a cluster that lacks room is waited for."""
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)
    """The predicted memory of one worker, by the trial's id, as far as it is known."""
    earlier: tuple[SweepConfig, ...] = ()
    """The sections `sweep` that the sweep had before its extensions, the first one first."""

    @property
    def folder(self) -> SweepFolder:
        """Where the sweep keeps everything."""
        return self.claimed.folder

    def conclude(self) -> None:
        """Write down that the sweep is finished: its command has answered, and the same command starts a new one.

        Raises:
            EnvironmentFault: the folder cannot be written to.
        """
        with writable(self.folder.path):
            self.folder.write(status="finished")

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
        """Whether there is a trial left to run; with a search that chooses them, there may be."""
        return bool(self.left) or self.sweep.search == "optuna"

    @property
    def total(self) -> int:
        """How many trials there will be at the most, without skipped ones."""
        return len(self.planned_trials) or (self.sweep.num_samples or 0) * self.sweep.seeds
