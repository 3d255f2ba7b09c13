"""A tune-up's folder."""

from paceline.bench.job_log import FILE as JOBS
from paceline.bench.jobs import StudyKind
from paceline.bench.study_folder import StudyFolder
from paceline.cluster.unfinished_runs import Unfinished


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
