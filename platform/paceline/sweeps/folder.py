"""A sweep's folder, and whether the same command goes on with an unfinished one."""

from pathlib import Path

from paceline.cluster.identity import (
    CHANGES_NO_RESULT,
    ClaimedRun,
    RunFolder,
    claim,
    config_difference,
    new_run,
    other_config,
)
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, Problem

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


class SweepFolder(RunFolder):
    """`<storage>/<name>/<sweep_id>`: the config, the status, the journal, the record and the trials of one sweep."""

    FILE = "sweep.json"

    @property
    def trials(self) -> Path:
        """Folder of the trials' own folders."""
        return self.path / "trials"

    @property
    def best_config(self) -> Path:
        """The config of the best trial, which `train` accepts."""
        return self.path / "best.yaml"


def claim_sweep(config: ExperimentConfig, storage: Path, must_resume: bool, anew: bool) -> ClaimedRun[SweepFolder]:
    """Go on with the newest unfinished sweep of this name, or start a new one.

    Args:
        must_resume: start none.
        anew: do not look for an unfinished one.

    Raises:
        EnvironmentFault: the storage is not writable, or a run or sweep of this name is going on.
        ConfigError: the unfinished sweep has another config, or there is none to resume.
    """

    def choose(home: Path) -> tuple[SweepFolder, bool]:
        unfinished = None if anew else _newest_unfinished(home)
        if unfinished is None and must_resume:
            hint = "leave --resume out to start one"
            raise ConfigError([Problem("resume", f"there is no unfinished sweep in {home}", "name", hint=hint)])
        if unfinished is None:
            return new_run(home, config, SweepFolder), False
        old = unfinished.read().get("config", {})
        difference = config_difference(old, config.model_dump(mode="json"), MAY_DIFFER)
        if difference and (must_resume or any(unfinished.trials.glob("*"))):
            hint = "undo the change to go on with it, or start anew with --new"
            raise other_config("sweep", config.name, unfinished, difference, hint)
        if difference:
            return new_run(home, config, SweepFolder), False
        unfinished.write(status="running")
        return unfinished, True

    return claim(storage / config.name, choose)


def _newest_unfinished(home: Path) -> SweepFolder | None:
    for path in sorted(home.iterdir(), reverse=True):
        if (path / SweepFolder.FILE).exists():
            folder = SweepFolder(path)
            return folder if folder.read().get("status") != "finished" else None
    return None
