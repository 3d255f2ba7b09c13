"""`SweepListener`: the protocol that the driver calls with stages, trials and warnings."""

from collections.abc import Mapping
from typing import Any, Protocol

from paceline.cluster.listener import SilentListener
from paceline.sweeps.trial import TrialTable


class SweepListener(Protocol):
    """Gets a sweep's stages and trials, in the driver's process."""

    def stage(self, text: str) -> None:
        """A stage of the launch begins: `starting Ray`, say."""

    def planned(self, lines: list[tuple[str, str]]) -> None:
        """Show the plan, before anything is launched: label and text."""

    def trials(self, view: TrialTable) -> None:
        """All trials as they stand, a few times a second."""

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        """A resume, a warning; the id of the trial that it is about, if any, as `trial` in the details."""


class SilentSweepListener(SilentListener):
    """For callers who only want the result."""

    def trials(self, view: TrialTable) -> None: ...
