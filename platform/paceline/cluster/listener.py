"""What the person who started a run gets to see while it continues; called in the driver's process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.tracking.redact import redact

UI_HINT = " (after `paceline ui`, which may print another port)"
"""Stands behind the links of a store that only `paceline ui` serves."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    total_steps: int | None = None
    samples_per_second: float = 0.0
    metrics: Mapping[str, float] | None = None


class Events(Protocol):
    """Told of what happens besides."""

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        """A checkpoint, a resume, a warning."""


class Stages(Events, Protocol):
    """Told of the launch, too."""

    def stage(self, text: str) -> None:
        """A stage of the launch begins: `starting Ray`, say."""


class Listener(Stages, Protocol):
    """Told of a run's stages and progress. The command line has one that draws a bar."""

    def planned(self, lines: list[tuple[str, str]]) -> None:
        """The derived values, before anything is launched."""

    def progress(self, progress: Progress) -> None:
        """A few times a second while training continues."""


class SilentListener:
    """For callers who only want the result."""

    def stage(self, text: str) -> None: ...

    def planned(self, lines: list[tuple[str, str]]) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def event(self, kind: str, details: Mapping[str, Any]) -> None: ...


def shown(text: str) -> str:
    """A text as a display may show it: without secrets."""
    return redact(text)
