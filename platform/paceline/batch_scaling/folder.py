"""A study's folder."""

from pathlib import Path

from paceline.bench.job_log import FILE as JOBS
from paceline.bench.jobs import StudyKind
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, Unfinished, claim
from paceline.config.experiment import ExperimentConfig


class ScaleFolder(RunFolder):
    """`<storage>/<name>/<scale_id>`: the config, the journal, what was found out, what is recommended."""

    FILE = "scale.json"

    @property
    def recommended(self) -> Path:
        """The recommended config, which `train` and `sweep` accept."""
        return self.path / "recommended.yaml"

    @property
    def findings(self) -> Path:
        """All that was found out, as `paceline scale --json` prints it."""
        return self.path / "findings.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints that branches begin at."""
        return self.path / "checkpoints"

    @property
    def ray(self) -> Path:
        """Folder that Ray writes to."""
        return self.path / "ray"


SCALE = StudyKind("scale study", "scale", code="scale-changed")
STUDIES = Unfinished(
    ScaleFolder,
    SCALE.noun,
    SCALE.may_differ,
    lambda folder: (folder.path / JOBS).exists(),
    over=("finished", "failed"),  # what has failed would fail again at the same place
)


def claim_study(config: ExperimentConfig, storage: Path, intent: Intent = "continue") -> ClaimedRun[ScaleFolder]:
    """Continue the newest unfinished study of this name, or start a new one.

    Raises:
        EnvironmentFault: the storage is not writable, or a run, sweep or study of this name is running.
        ConfigError: the unfinished study has another config, or there is none to resume.
    """
    return claim(storage / config.name, lambda home: STUDIES.choose(home, config, intent))
