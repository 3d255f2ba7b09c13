"""A tune-up's folder."""

from pathlib import Path

from paceline.bench.job_log import FILE as JOBS
from paceline.bench.jobs import StudyKind
from paceline.bench.study_folder import StudyFolder
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, Unfinished, claim
from paceline.config.experiment import ExperimentConfig


class TuneupFolder(StudyFolder):
    """The folder of a tune-up."""

    FILE = "tuneup.json"


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
