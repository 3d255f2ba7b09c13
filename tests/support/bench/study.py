"""A kind of study for tests of the bench."""

from paceline.bench.jobs import StudyKind

STUDY = StudyKind("study", "tuneup", code="study-changed")
