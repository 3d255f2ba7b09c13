"""A run's folder is its owner's alone, and its group's where the storage folder is shared."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import train
from support.cluster.local_runs import small_config
from support.modes import PRIVATE, SHARED, modes_in


@pytest.fixture
def home(work: Path) -> Iterator[Path]:
    """A user's folder, with the umask that most systems have."""
    before = os.umask(0o022)
    yield work
    os.umask(before)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_run_and_its_extension(home: Path, is_shared: bool) -> None:
    if is_shared:
        (home / "runs").mkdir()
        (home / "runs").chmod(0o2770)
    one, two = (small_config(trainer__epochs=epochs, checkpoint__every_n_steps=1) for epochs in (1, 2))
    run, longer = train(one), train(two, extend=True)
    assert longer.run_id != run.run_id
    found = modes_in(home / "runs")
    assert found == (SHARED if is_shared else PRIVATE)
    names = {path.name for path in longer.folder.rglob("*")}
    assert {"run.json", "journal.jsonl", "MANIFEST.json", "model.safetensors", "outcome.json", "code.json"} <= names
