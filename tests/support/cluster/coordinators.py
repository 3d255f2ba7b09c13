"""Coordinators of runs without a server, full disks, and listeners that keep what they are told."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.cluster.listener import SilentListener
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.run_record import RunRecord

NOWHERE = "http://127.0.0.1:9"


def open_coordinator(
    folder: Path, kind: type[RunCoordinator] = RunCoordinator, params: Mapping[str, Any] | None = None, **options: Any
) -> RunCoordinator:
    """The coordinator of a run whose MLflow server is not there."""
    return kind(folder, RunRecord("r", "n", NOWHERE, "e", dict(params or {})), **options)


def warnings_of(coordinator: RunCoordinator) -> list[str]:
    """The codes of the warnings that a watcher of the coordinator is shown."""
    return [details["code"] for kind, details in coordinator.view().events if kind == "warning"]


def entries_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The contents of a journal's entries of a kind."""
    return [dict(entry.content) for entry in Journal(folder / JOURNAL_FILE).read() if entry.kind == kind]


def tags_of(folder: Path) -> dict[str, str]:
    """The tags in a journal, with the newest value of each."""
    return {key: value for entry in entries_of(folder, "tags") for key, value in entry["tags"].items()}


def no_space(*given: Any, **named: Any) -> Any:
    """Stands for whatever writes to a disk that is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Events(SilentListener):
    """Keeps the events of a launch, and its stages; does something at the first stage."""

    def __init__(self, at_first_stage: Callable[[], object] = lambda: None) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stages: list[str] = []
        self.lines: list[tuple[str, str]] = []
        self._at_first_stage = at_first_stage

    @property
    def warnings(self) -> list[str]:
        """Their codes."""
        return [details["code"] for kind, details in self.events if kind == "warning"]

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        self.events.append((kind, dict(details)))

    def stage(self, text: str) -> None:
        self.stages.append(text)
        if len(self.stages) == 1:
            self._at_first_stage()

    def planned(self, lines: list[tuple[str, str]]) -> None:
        self.lines += lines
