"""A tune-up's folder."""

from pathlib import Path

from paceline.cluster.identity import ClaimedRun, RunFolder, claim, new_run
from paceline.config.experiment import ExperimentConfig


class TuneupFolder(RunFolder):
    """`<storage>/<name>/<tuneup_id>`: the config, what was found out, the recommended config and the report."""

    FILE = "tuneup.json"

    @property
    def recommended(self) -> Path:
        """The recommended config, which `train` and `sweep` accept."""
        return self.path / "recommended.yaml"

    @property
    def findings(self) -> Path:
        """All that was found out, as `paceline tuneup --json` prints it."""
        return self.path / "findings.json"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.path / "report.html"

    @property
    def ray(self) -> Path:
        """Where Ray writes."""
        return self.path / "ray"


def claim_tuneup(config: ExperimentConfig, storage: Path) -> ClaimedRun[TuneupFolder]:
    """A new tune-up's folder, while nothing else of this name goes on.

    Raises:
        EnvironmentFault: the storage is not writable, or a run, sweep or tune-up of this name is going on.
    """
    return claim(storage / config.name, lambda home: (new_run(home, config, TuneupFolder), False))
