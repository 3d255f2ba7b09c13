"""The lock of the program that creates the embedded database: nobody else can turn it against the user, or hold it."""

import fcntl
import os
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from paceline.tracking import mlflow_database

LOCK = ".mlflow.db.lock"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work" / "mlflow.db"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's that nobody may touch."""
    (tmp_path / "victim").write_text("precious")
    return tmp_path / "victim"


def test_a_link_and_a_lock_planted_in_the_shared_temporary_folder_do_nothing(
    path: Path, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / f"paceline-database-{mlflow_database._token(path)}.lock").symlink_to(victim)
    with victim.open() as foreign:
        fcntl.flock(foreign, fcntl.LOCK_EX)
        with mlflow_database._alone(path):
            assert stat.S_IMODE((path.parent / LOCK).stat().st_mode) == 0o600
    assert victim.read_text() == "precious"
    assert os.listdir(path.parent) == []


def test_a_link_in_place_of_the_lock_is_refused(path: Path, victim: Path) -> None:
    (path.parent / LOCK).symlink_to(victim)
    with pytest.raises(OSError, match=LOCK), mlflow_database._alone(path):
        pass
    assert victim.read_text() == "precious"
    assert (path.parent / LOCK).is_symlink()


def test_what_another_user_left_in_its_place_is_only_locked(path: Path) -> None:
    foreign = path.parent / LOCK
    foreign.write_text("another user's")
    foreign.chmod(0o666)
    if os.geteuid() == 0:
        os.chown(foreign, 12345, 12345)
    with mlflow_database._alone(path):
        assert foreign.read_text() == "another user's"
    assert not foreign.exists()


def test_one_at_a_time_also_when_the_lock_is_removed_meanwhile(path: Path) -> None:
    inside, most, order = 0, 0, threading.Lock()

    def create() -> None:
        nonlocal inside, most
        for _ in range(50):
            with mlflow_database._alone(path):
                with order:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.0005)  # others get their turn, and must wait
                with order:
                    inside -= 1

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert most == 1
    assert os.listdir(path.parent) == []
