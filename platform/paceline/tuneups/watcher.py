"""Interface of those who watch a tune-up."""

from collections.abc import Sequence
from typing import Protocol

from paceline.cluster.listener import Stages
from paceline.tuneups.confirmation import Confirmed
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.techniques import Technique


class Watcher(Stages, Protocol):
    """Receives the progress of a tune-up."""

    def resumed(self, tuneup_id: str, spent_seconds: float) -> None:
        """Called if the tune-up resumes an interrupted launch, with the seconds of the budget already spent."""

    def techniques(self, techniques: Sequence[Technique]) -> None:
        """Called with all techniques: those that will be tried, and those that will not."""

    def screened(self, pair: ScreenedPair) -> None:
        """Called after each paired benchmark."""

    def confirmed(self, build: int, confirmed: Confirmed) -> None:
        """Called after each build, with the results so far."""
