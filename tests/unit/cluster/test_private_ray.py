"""Folders of private Rays: made for this user alone, and removed once nothing of theirs runs any more."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import private_ray
from paceline.cluster.private_ray import LONGEST_SOCKET, PREFIX, keep_logs, private_ray_folder, remove_dead_folders


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder."""
    monkeypatch.setattr(private_ray, "LONGEST_SOCKET", 1000)  # the folders of tests have long names
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path


def abandoned(root: Path, name: str = "abandoned") -> Path:
    """The folder of a private Ray, with a session in it."""
    folder = root / f"{PREFIX}{name}"
    (folder / "session_1" / "logs").mkdir(parents=True)
    (folder / "session_1" / "logs" / "raylet.out").write_text("...")
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """As the driver of a private Ray has it locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def test_a_folder_is_the_users_alone_and_removed_at_the_end(root: Path) -> None:
    with private_ray_folder() as folder:
        assert folder.parent.parent == root
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        (folder / "session_1").mkdir(parents=True)
    assert os.listdir(root) == []


def test_a_folder_is_removed_in_which_a_process_of_ray_still_writes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed_but_for_what_is_written_meanwhile(folder: Path, **options: Any) -> None:
        remove(folder, **options)
        if writes:
            writes.pop()
            folder.mkdir()
            (folder / "agent.log").touch()

    remove, writes = shutil.rmtree, [1, 2]
    monkeypatch.setattr(private_ray.shutil, "rmtree", removed_but_for_what_is_written_meanwhile)
    with private_ray_folder():
        pass
    assert writes == []
    assert os.listdir(root) == []


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_folder_with_logs_of_a_failure_stays_until_the_next_private_ray(root: Path, is_raised: bool) -> None:
    with suppress(ZeroDivisionError), private_ray_folder() as failed:
        if is_raised:
            raise ZeroDivisionError
        keep_logs()
    assert failed.parent.is_dir()
    with private_ray_folder() as folder:
        assert list(root.iterdir()) == [folder.parent]
    assert list(root.iterdir()) == []


def test_only_a_dead_private_ray_of_this_user_is_removed(root: Path) -> None:
    dead, alive, foreign, elsewhere = (abandoned(root, name) for name in ("dead", "alive", "foreign", "elsewhere"))
    others = root / "session_1"
    others.mkdir()
    os.chown(foreign, 12345, 12345) if os.geteuid() == 0 else foreign.rename(root / "foreign")
    kept = elsewhere.rename(root / "kept")
    elsewhere.symlink_to(kept)
    with locked(alive):
        remove_dead_folders(root)
    assert not dead.exists()
    assert len(list(root.iterdir())) == 5
    for folder in (alive, kept):
        assert (folder / "session_1" / "logs" / "raylet.out").exists()
    remove_dead_folders(root)
    assert not alive.exists()


def test_a_folder_that_another_command_removes_before_it_is_locked_is_made_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def unlucky(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            remove_dead_folders(root)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", unlucky)
    with private_ray_folder() as folder:
        assert str(folder.parent) == made[1]
        assert os.listdir(root) == [folder.parent.name]


def test_the_paths_of_sockets_stay_short_enough_for_the_system(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_ray, "LONGEST_SOCKET", LONGEST_SOCKET)
    monkeypatch.setattr(private_ray, "DEFAULT_ROOT", root)
    monkeypatch.setenv("RAY_TMPDIR", f"/{'x' * 40}")
    with private_ray_folder() as folder:
        assert folder.parent.parent == root
