"""The stage of the chaos tests: undisturbed runs, and the table of what happened to the others."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking.mlflow_server import free_port
from support.chaos.chaos import Chaos, Outcome, play
from support.chaos.oracle import Oracle, collect
from support.chaos.scene import Scene

MOST_ATTEMPTS = 4
"""How often chaos is played, each time earlier, until its victim was there: one that hits nothing shows nothing."""
Disturb = Callable[[Chaos, Oracle, Mapping[str, Any], str], Outcome]
"""Plays chaos on a command with a config, compares, and returns the outcome."""


@pytest.fixture
def rays_folder() -> Iterator[Path]:
    """In place of the system's temporary folder, for Ray's files; its path must be short."""
    with tempfile.TemporaryDirectory(prefix="rays", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def undisturbed(folder: Path, database: Path, config: Mapping[str, Any], command: str, forks: bool) -> Oracle:
    """Run the command without trouble."""
    with tempfile.TemporaryDirectory(prefix="rays", ignore_cleanup_errors=True) as rays_folder:
        scene = Scene(folder / "user", Path(rays_folder), config, command, database, forks=forks)
        try:
            if forks:  # the server of the forks imports torch for the first of them
                scene.user.give("--help")
                assert scene.end() == 0, scene.user.told()
            began = time.monotonic()
            scene.start()
            assert scene.end() == 0, scene.user.told()
            duration = time.monotonic() - began
            return Oracle(collect(scene, scene.answer()), duration)
        finally:
            scene.leave()


@pytest.fixture
def disturb(
    tmp_path: Path,
    rays_folder: Path,
    prepared_database: Path,
    record_property: Callable[[str, object], None],
) -> Disturb:
    """Plays chaos on a command, and has the oracle look at the result."""

    def act(chaos: Chaos, oracle: Oracle, config: Mapping[str, Any], command: str) -> Outcome:
        port = free_port(26_500 + os.getpid() % 5_000) if chaos.victim == "server" else None
        forks = command == "train" and config["scaling"]["num_workers"] == 0
        for attempt in range(MOST_ATTEMPTS):
            folder = tmp_path / f"attempt {attempt}"
            scene = Scene(folder / "user", rays_folder, config, command, prepared_database, port, forks)
            try:
                scene.open()
                outcome = play(chaos.earlier(attempt), scene, oracle.duration_seconds)
                if outcome.struck_seconds is None:
                    continue
                record_property("chaos", json.dumps(outcome.record))
                assert outcome.result is not None, scene.user.told()
                if port is not None:
                    scene.sync()
                complaints = oracle.complaints(collect(scene, outcome.result))
                assert complaints == {}, f"{outcome.record}\n{complaints}"
                return outcome
            finally:
                scene.leave()
        raise AssertionError(f"{chaos} hit nothing in {MOST_ATTEMPTS} attempts")

    return act
