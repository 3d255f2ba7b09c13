"""A study's folder."""

import shutil
from pathlib import Path

from paceline.bench.job_log import FILE as JOBS
from paceline.bench.jobs import StudyKind
from paceline.bench.study_folder import StudyFolder
from paceline.cluster.unfinished_runs import Unfinished


class ScaleFolder(StudyFolder):
    """The folder of a scale study."""

    FILE = "scale.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints that branches begin at."""
        return self.path / "checkpoints"

    def clear(self) -> None:
        """Remove the checkpoints."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)


SCALE = StudyKind("scale study", "scale", code="scale-changed")
STUDIES = Unfinished(
    ScaleFolder,
    SCALE.noun,
    SCALE.may_differ,
    lambda folder: (folder.path / JOBS).exists(),
    over=("finished", "failed"),  # what has failed would fail again at the same place
)
