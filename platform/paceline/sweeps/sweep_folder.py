"""A sweep's folder, and the choice between continuing an unfinished sweep and starting a new one."""

from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.resume_rules import CHANGES_NO_RESULT
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, Unfinished, claim
from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.errors import EnvironmentFault
from paceline.sweeps.sweep_log import read_log

OF_ONE_LENGTH = "trainer.epochs"
"""May differ when a run is resumed, but the trials of a sweep are compared."""
MAY_DIFFER = (
    *(key for key in CHANGES_NO_RESULT if key != OF_ONE_LENGTH),
    "sweep.slots",
    "sweep.isolation",
    "sweep.max_failures_per_trial",
    "sweep.stop",
)
"""Keys and sections that change neither what a sweep's trials compute nor which ones there are."""


EXTENDED = "extended"
"""Entry of a sweep's file: the sections `sweep` that it had before each of its extensions."""


class SweepFolder(RunFolder):
    """`<storage>/<name>/<sweep_id>`: the config, the status, the journal, the record and the trials of one sweep."""

    FILE = "sweep.json"

    @property
    def trials(self) -> Path:
        """Folder of the trials' own folders."""
        return self.path / "trials"

    @property
    def earlier(self) -> tuple[SweepConfig, ...]:
        """The sections `sweep` that it had before each of its extensions, the first one first; see `extension`.

        Raises:
            EnvironmentFault: its file is damaged.
        """
        try:
            return tuple(SweepConfig.model_validate(section) for section in self.read().get(EXTENDED, []))
        except (TypeError, ValueError):
            file = self.path / self.FILE
            hint = f"put it back from a copy, or move {self.path} away to start again"
            raise EnvironmentFault(f"{file} is damaged: {hint}", "run-file-damaged", file=str(file)) from None

    @property
    def best_config(self) -> Path:
        """The config of the best trial, which `train` accepts."""
        return self.path / "best.yaml"


SWEEPS = Unfinished(SweepFolder, "sweep", MAY_DIFFER, lambda folder: any(folder.trials.glob("*")))


def claim_sweep(config: ExperimentConfig, storage: Path, intent: Intent = "continue") -> ClaimedRun[SweepFolder]:
    """Continue the newest unfinished sweep of this name, or start a new one.

    Raises:
        EnvironmentFault: the storage is not writable, or a run or sweep of this name is running.
        ConfigError: the unfinished sweep has another config, or there is none to resume.
    """

    return claim(storage / config.name, lambda home: SWEEPS.choose(home, config, intent))


@dataclass(frozen=True)
class UnfinishedSweep:
    """A sweep that the same command would find, and continue with unless its config differs."""

    sweep_id: str
    ended: int
    """Trials that are not run again; those that are not a valid config are not counted."""
    differing: tuple[str, ...]
    """Keys that may not differ, and do: the command would be refused."""


def find_unfinished(config: ExperimentConfig, home: Path) -> UnfinishedSweep | None:
    """The unfinished sweep that `claim_sweep` would come upon; None when it would start a new one. Changes nothing.

    Args:
        home: `<storage>/<name>`.
    """
    found = SWEEPS.newest(home)
    if found is None:
        return None
    differing = tuple(SWEEPS.difference(found, config))
    if differing and not SWEEPS.has_begun(found):
        return None
    try:
        ended = [trial for trial in read_log(found.path).ended.values() if trial.state != "skipped"]
    except (OSError, KeyError, TypeError):  # of another version
        ended = []
    return UnfinishedSweep(found.run_id, len(ended), differing)
