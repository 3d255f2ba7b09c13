"""A study's folder."""

from pathlib import Path

from paceline.bench.job_log import FILE as JOBS
from paceline.bench.jobs import StudyKind
from paceline.bench.study_folder import StudyFolder
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, Unfinished, claim
from paceline.config.experiment import ExperimentConfig


class ScaleFolder(StudyFolder):
    """The folder of a scale study."""

    FILE = "scale.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints that branches begin at."""
        return self.path / "checkpoints"


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
