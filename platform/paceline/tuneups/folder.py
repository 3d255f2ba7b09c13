"""A tune-up's folder."""

from pathlib import Path

from paceline.bench.job_log import FILE as JOBS
from paceline.bench.jobs import StudyKind
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, Unfinished, claim
from paceline.config.experiment import ExperimentConfig


class TuneupFolder(RunFolder):
    """`<storage>/<name>/<tuneup_id>`: the config, the journal, what was found out, what is recommended, the report."""

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
        """Folder that Ray writes to."""
        return self.path / "ray"


TUNEUP = StudyKind("tune-up", "tuneup", code="tuneup-changed")
TUNEUPS = Unfinished(
    TuneupFolder,
    TUNEUP.noun,
    TUNEUP.may_differ,
    lambda folder: (folder.path / JOBS).exists(),
    over=("finished", "failed"),  # what has failed would fail again at the same place
)


def claim_tuneup(config: ExperimentConfig, storage: Path, intent: Intent = "continue") -> ClaimedRun[TuneupFolder]:
    """Continue the newest unfinished tune-up of this name, or start a new one.

    Raises:
        EnvironmentFault: the storage is not writable, or a run, sweep or tune-up of this name is running.
        ConfigError: the unfinished tune-up has another config, or there is none to resume.
    """
    return claim(storage / config.name, lambda home: TUNEUPS.choose(home, config, intent))
