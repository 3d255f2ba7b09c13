"""What there is to tell of a run, or of one trial of a sweep: gathered from its folder, without secrets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.desk import read_outcome
from paceline.cluster.identity import RunFolder
from paceline.engine.manifest import MANIFEST, numbered
from paceline.errors import EnvironmentFault
from paceline.runs.finding import FoundRun
from paceline.runs.report.costs import ledger_of
from paceline.runs.report.reading import CONFIG_FILE, Told, read
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger

STATUS_WORDS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted", "RUNNING": "running"}


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder."""

    step: int
    folder: Path
    size_bytes: int | None
    """Of its files, as its manifest says; None where that cannot be read."""
    weights: str
    """SHA-256 of the file with the weights; empty when not known."""


@dataclass(frozen=True)
class RunStory:
    """One run."""

    kind: str
    """`run` or `trial`."""
    id: str
    name: str
    folder: Path
    status: str
    """`finished`, `failed`, `interrupted`, `running`; for a trial also `pruned` and so on."""
    told: Told
    outcome: Mapping[str, Any]
    """How training ended, as rank 0 told it; empty when nobody did."""
    config: str
    """YAML; empty when it is not known."""
    ledger: Ledger | None
    checkpoints: Sequence[Checkpoint]
    """The newest first."""

    @property
    def started_ms(self) -> int | None:
        """When it was launched for the first time: a run's id says it, whatever its record does."""
        return self.told.started_ms(self.id if self.kind == "run" else "")

    @property
    def seconds(self) -> float | None:
        """From the first start to the end, or to the newest point, in seconds; None when either is not known."""
        return self.told.seconds_since(self.started_ms)


def run_story(found: FoundRun) -> RunStory:
    """All of it. Changes nothing.

    Raises:
        EnvironmentFault: the run's file is damaged, or there is nothing to tell.
    """
    content = RunFolder(found.folder).read()
    told = read(found.tracking)
    if not content and not told.name and not told.curves:
        raise EnvironmentFault(
            f"there is nothing to tell of the {found}: {found.tracking} holds no record and no journal",
            "no-record",
            path=found.tracking,
        )
    return RunStory(
        kind=found.kind,
        id=found.id,
        name=told.name or found.name,
        folder=found.folder,
        status=_status(content, told),
        told=told,
        outcome=read_outcome(found.tracking) or {},
        config=told.file(CONFIG_FILE),
        ledger=ledger_of(told),
        checkpoints=[_checkpoint(step, folder) for step, folder in numbered(found.checkpoints)],
    )


def _status(content: Mapping[str, Any], told: Told) -> str:
    state = told.tags.get(metrics.TRIAL_STATE, "")
    written = content.get("status")
    if written in ("finished", "failed", "interrupted"):
        return str(written)
    return state or STATUS_WORDS.get(told.status, "") or str(written or "unfinished")


def _checkpoint(step: int, folder: Path) -> Checkpoint:
    try:
        entries = json.loads((folder / MANIFEST).read_bytes())["files"]
        size = sum(int(entry["size_bytes"]) for entry in entries.values())
        weights = next((str(entry["sha256"]) for name, entry in entries.items() if name == "model.safetensors"), "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Checkpoint(step, folder, None, "")
    return Checkpoint(step, folder, size, weights)
