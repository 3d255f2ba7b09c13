"""A kind of study for tests of the bench, and its folder."""

from pathlib import Path

from paceline.bench.jobs import StudyKind
from paceline.bench.study_folder import StudyFolder

STUDY = StudyKind("study", "tuneup", code="study-changed")


class Folder(StudyFolder):
    """The folder of such a study."""

    FILE = "study.json"


def study_folder(path: Path) -> Folder:
    """A folder that nobody has removed."""
    path.mkdir(parents=True, exist_ok=True)
    (path / Folder.FILE).touch()
    return Folder(path)
