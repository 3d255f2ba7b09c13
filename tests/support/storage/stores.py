"""Places in a store for tests: `s3://bucket/runs`, kept in a folder, see `LocalStore`."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.storage.address import RunStore, parse
from support.storage.local_store import LocalStore

STORAGE = parse("s3://bucket/runs?region=test")


def play_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """Have every address in this process be that of a store in a folder, which is not waited for when it is away."""
    store = LocalStore(folder / "store")

    monkeypatch.setattr("paceline.storage.remote_folder.open_store", lambda address, hasty: store)
    for name in ("remote_folder.PATIENCE_SECONDS", "stored_checkpoints.FINAL_SECONDS"):
        monkeypatch.setattr(f"paceline.storage.{name}", 0.0)
    monkeypatch.setattr("paceline.storage.lease.SETTLE_SECONDS", 0.0)
    go_to(folder / "cache", monkeypatch)
    return store


def go_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on the machine that has this cache."""
    monkeypatch.setenv("PACELINE_CACHE", str(cache))


def sweep_store(launch: str = "launch-1", trusted: tuple[str, ...] = ()) -> RunStore:
    """The place of a sweep named `run`."""
    return replace(RunStore(str(STORAGE), "run", "sweep-1"), launch=launch, trusted=trusted)
