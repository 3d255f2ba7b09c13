"""Listeners of a run: protocols that the driver calls with stages, progress and warnings."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Protocol

from paceline.cluster.run_events import START, EventCursor
from paceline.errors import coded
from paceline.redaction import redact

UI_HINT = " (after `paceline ui`, which may print another port)"
"""Text after the links of a store that only `paceline ui` serves."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run."""

    step: int = 0
    total_steps: int | None = None
    samples_per_second: float = 0.0
    metrics: Mapping[str, float] | None = None


class Events(Protocol):
    """Takes events of a run."""

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        """Take an event, such as a checkpoint, a resume or a warning."""


class Stages(Events, Protocol):
    """Takes the stages of the launch, too."""

    def stage(self, text: str) -> None:
        """Take a stage of the launch as it begins, such as `starting Ray`."""


class Listener(Stages, Protocol):
    """Takes a run's stages and progress. The command line has one that draws a bar."""

    def planned(self, lines: list[tuple[str, str]]) -> None:
        """Take the derived values, before anything is launched."""

    def progress(self, progress: RunProgress) -> None:
        """Take the progress, a few times a second while training continues."""


class SilentListener:
    """Listener that shows nothing, for callers who only want the result."""

    def stage(self, text: str) -> None: ...

    def planned(self, lines: list[tuple[str, str]]) -> None: ...

    def progress(self, progress: RunProgress) -> None: ...

    def event(self, kind: str, details: Mapping[str, Any]) -> None: ...


class WarningLog:
    """Passes everything on to a listener, and keeps the warnings."""

    def __init__(self, listener: Listener) -> None:
        self.warnings: list[str] = []
        """Their texts, each with its code at the end."""
        self._listener = listener

    def stage(self, text: str) -> None:
        self._listener.stage(text)

    def progress(self, progress: RunProgress) -> None:
        self._listener.progress(progress)

    def planned(self, lines: list[tuple[str, str]]) -> None:
        """Take the derived values; the warnings about the config are lines of this table."""
        self.warnings += [redact(text) for label, text in lines if label == "warning"]
        self._listener.planned(lines)

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        if kind == "warning":
            self.warnings.append(redact(coded(details["message"], details["code"])))
        self._listener.event(kind, details)


STOPPING = "stopping: the state is saved first; another signal stops at once"


class ProgressFeed:
    """Passes the events and the progress of a coordinator to the listener, each event once."""

    def __init__(self, listener: Listener, total_steps: int | None) -> None:
        self._cursor = START
        self._lock = Lock()  # the checkpoint's thread has news too
        self._listener = listener
        self._total_steps = total_steps
        self._is_stopping = False

    def acknowledge_stop(self) -> None:
        """Tell the user, once, that a signal has arrived. Not from its handler, which may interrupt the listener."""
        if not self._is_stopping:
            self._is_stopping = True
            self._listener.stage(STOPPING)

    def show(self, look: Callable[[EventCursor], Any]) -> Any:
        """Pass new events to the listener; `look` returns a coordinator's view with the events after a cursor."""
        with self._lock:
            view = look(self._cursor)
            self._cursor = view.cursor
            self._show(view)
        return view

    def _show(self, view: Any) -> None:
        for kind, details in view.events:
            if kind == "stage":
                self._listener.stage(details["text"])
            elif kind == "plan":
                self._total_steps = details["total_steps"]
            elif kind in ("batch", "length", "optimizer"):
                self._listener.planned([(kind, details["text"])])
            else:
                self._listener.event(kind, details)
        if view.step:
            state = asdict(view)
            self._listener.progress(
                RunProgress(state["step"], self._total_steps, state["samples_per_second"], state["metrics"])
            )
