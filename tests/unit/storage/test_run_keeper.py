"""The keeper of a stored run: its lease while a copy takes long, and no copy once another machine has taken over."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.storage import run_keeper
from paceline.storage.lease import FILE, Lease, read_holder
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.run_keeper import RunKeeper
from support.storage.local_store import LocalStore
from support.storage.stores import play_store, sweep_store

RUN = sweep_store()


class SlowCopy:
    """A copy that waits in the middle of each push, and notes them."""

    journal_bytes = 0

    def __init__(self) -> None:
        self.pushes = 0
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def is_wanted(self) -> bool:
        return True

    def is_behind(self) -> bool:
        return True

    def push_wanted(self) -> None:
        self.push()

    def push(self) -> None:
        self.pushes += 1
        self.begun.set()
        assert self.may_end.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    for name, seconds in {"RENEW": 0.02, "INTERVAL": 0.02, "LOOK": 0.01, "AGAIN": 0.05, "LEAVE": 1.0}.items():
        monkeypatch.setattr(run_keeper, f"{name}_SECONDS", seconds)
    return play_store(tmp_path, monkeypatch)


@pytest.fixture
def lease() -> Lease:
    taken = Lease(RemoteFolder(RUN.home), RUN.launch)
    taken.renew()
    return taken


def keeper_of(copy: SlowCopy, lease: Lease, tmp_path: Path) -> RunKeeper:
    (tmp_path / "run.json").write_text("{}")
    return RunKeeper(RUN, tmp_path / "run.json", copy, lease)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def expiry() -> float:
    holder = read_holder(RemoteFolder(RUN.home))
    return 0.0 if holder is None else holder.until


def test_the_lease_is_renewed_while_a_copy_takes_long(tmp_path: Path, lease: Lease) -> None:
    copy = SlowCopy()
    keeper = keeper_of(copy, lease, tmp_path)
    keeper.start()
    assert copy.begun.wait(60)
    first = expiry()
    until(lambda: expiry() > first)
    copy.may_end.set()
    keeper.release()
    assert read_holder(RemoteFolder(RUN.home)) is None


@pytest.mark.parametrize("is_held", [True, False], ids=["by another one", "by nobody any more"])
def test_nothing_is_copied_once_another_machine_has_taken_over(
    tmp_path: Path, lease: Lease, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    monkeypatch.setattr(run_keeper, "RENEW_SECONDS", 60.0)  # the copy comes first
    copy = SlowCopy()
    keeper = keeper_of(copy, lease, tmp_path)
    home = RemoteFolder(RUN.home)
    Lease(home, "another").renew()
    if not is_held:
        home.remove(FILE)
    keeper.start()
    until(lambda: keeper.lost)
    copy.may_end.set()
    keeper.release()
    assert copy.pushes == 0


def test_copies_continue_after_an_error_of_any_kind(tmp_path: Path, lease: Lease) -> None:
    copy = SlowCopy()
    copy.error = RuntimeError("unheard of")
    copy.may_end.set()
    keeper = keeper_of(copy, lease, tmp_path)
    keeper.start()
    until(lambda: copy.pushes > 2)
    copy.error = None
    keeper.release()
