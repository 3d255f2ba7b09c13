"""Checkpoints that a trial in a store pins and another one adopts, and the copies that count no more then."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.cluster.initial_weights import find_weights
from paceline.engine.checkpoint_files import Snapshot, write_checkpoint
from paceline.engine.manifest import MANIFEST, numbered
from paceline.storage.address import RunStore, StoreAddress
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import LeaseLost, StoreFault
from paceline.storage.stored_checkpoints import BROKEN, StoredCheckpoints, adopt_stored, pin_stored
from support.refusals import refused
from support.storage.local_store import AWAY, LocalStore
from support.storage.stores import STORAGE, go_to, play_store, sweep_store

GIVER, TAKER = sweep_store().trial("0001"), sweep_store().trial("0002")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    store = play_store(tmp_path, monkeypatch)
    Lease(RemoteFolder(GIVER.home), GIVER.launch).renew()
    return store


def save(trial: RunStore, step: int, weight: float = 1.0, is_stored: bool = True) -> Path:
    """Write a checkpoint of a trial on this machine, and put it into the store."""
    tensors = {"model": {"weight": torch.full((3,), weight)}}
    checkpoints = StoredCheckpoints(trial)
    checkpoints.newest(lambda path, reason: None, lambda: True)
    written = write_checkpoint(checkpoints.folder, Snapshot(step, tensors, {"position": {"step": step}}))
    if is_stored:
        checkpoints.put(written, lambda: True)
    return written


def steps(trial: RunStore) -> list[int]:
    return StoredCheckpoints(trial).whole_steps()


def pinned_steps(trial: RunStore) -> list[int]:
    files = (RemoteFolder(trial.address) / "pinned").files()
    return sorted(int(name.split("/")[0].removeprefix("step-")) for name in files if name.endswith(MANIFEST))


def manifest(trial: RunStore, place: str) -> bytes | None:
    return (RemoteFolder(trial.address) / place).read(MANIFEST)


def pinned(trial: RunStore, step: int, weight: float = 1.0) -> StoreAddress:
    save(trial, step, weight)
    found = pin_stored(trial, step, keep=3)
    assert found is not None
    return found


def resumed(trial: RunStore) -> int:
    """The step that a worker resumes from, which has its copy then."""
    found = StoredCheckpoints(trial).newest(lambda path, reason: None, lambda: True)
    assert found is not None
    return int(found.name.removeprefix("step-"))


def test_a_pinned_checkpoint_outlives_pruning(store: LocalStore) -> None:
    found = pinned(GIVER, 4)
    save(GIVER, 8)
    StoredCheckpoints(GIVER).prune(keep=1)
    assert steps(GIVER) == [8]
    assert str(found) == str(GIVER.address / "pinned" / "step-4")
    assert pinned_steps(GIVER) == [4]
    assert pin_stored(GIVER, 4, keep=3) is None
    writes = [place for place in store.written if "/pinned/step-4/" in place]
    assert writes[-1].endswith(MANIFEST)


def test_a_checkpoint_that_is_pruned_meanwhile_is_not_pinned(store: LocalStore) -> None:
    save(GIVER, 4)
    (store.root / GIVER.address.place / "checkpoints" / "step-4" / "state.json").unlink()
    assert pin_stored(GIVER, 4, keep=3) is None
    assert pinned_steps(GIVER) == []


def test_those_that_were_pinned_last_stay() -> None:
    for step in (8, 12, 4, 16):
        save(GIVER, step)
        pin_stored(GIVER, step, keep=2)
    assert pinned_steps(GIVER) == [4, 16]
    pin_stored(GIVER, 4, keep=2)
    save(GIVER, 20)
    pin_stored(GIVER, 20, keep=2)
    assert pinned_steps(GIVER) == [4, 20]


@pytest.mark.parametrize("step", [4, 8, 12])
def test_an_adopted_checkpoint_takes_the_place_of_all_others(step: int) -> None:
    found = pinned(GIVER, step, 2.0)
    for own in (4, 8):
        save(TAKER, own)
    assert adopt_stored(found, TAKER)
    assert steps(TAKER) == [step]
    assert manifest(TAKER, f"checkpoints/step-{step}") == manifest(GIVER, f"checkpoints/step-{step}")
    assert resumed(TAKER) == step
    assert [number for number, _ in numbered(TAKER.folder / "checkpoints")] == [step]


def test_newer_copies_on_other_machines_count_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the same launch has a newer one that did not get into the store."""
    found = pinned(GIVER, 4, 2.0)
    save(TAKER, 8)
    save(TAKER, 12, is_stored=False)
    go_to(tmp_path / "cache of the driver", monkeypatch)
    assert adopt_stored(found, TAKER)
    go_to(tmp_path / "cache", monkeypatch)
    assert resumed(TAKER) == 4
    assert steps(TAKER) == [4]
    save(TAKER, 6, is_stored=False)
    assert resumed(TAKER) == 6  # what it writes from there counts again


def test_a_broken_checkpoint_is_replaced_as_a_whole() -> None:
    found = pinned(GIVER, 4, 2.0)
    save(TAKER, 4)
    (RemoteFolder(TAKER.address) / "checkpoints" / "step-4").write(BROKEN, b"{}")
    assert adopt_stored(found, TAKER)
    assert steps(TAKER) == [4]


def test_own_checkpoints_stay() -> None:
    found = pinned(TAKER, 4)
    save(TAKER, 8)
    assert adopt_stored(found, TAKER)
    assert steps(TAKER) == [8, 4]
    gone = GIVER.address / "pinned" / "step-4"
    assert not adopt_stored(gone, TAKER)
    assert steps(TAKER) == [8, 4]


def test_who_has_lost_the_lease_adopts_nothing() -> None:
    found = pinned(GIVER, 8, 2.0)
    save(TAKER, 4)
    Lease(RemoteFolder(TAKER.home), "another").renew()
    with pytest.raises(LeaseLost):
        adopt_stored(found, TAKER)
    assert steps(TAKER) == [4]


def test_a_store_that_is_away_is_reported(store: LocalStore) -> None:
    found = pinned(GIVER, 8)
    store.fault = AWAY
    for action in (lambda: pin_stored(GIVER, 8, 3), lambda: adopt_stored(found, TAKER)):
        assert refused(StoreFault, action).code == "store-silent"


@pytest.mark.parametrize("text", ["run/sweep-1/trials/0001", "run/sweep-1/0001", "{address}"])
def test_a_run_starts_from_the_weights_of_a_trial(text: str) -> None:
    RemoteFolder(GIVER.address.parent.parent).write("sweep.json", b"{}")
    (RemoteFolder(GIVER.address) / "tracking").write("record.json", b"{}")
    for step in (4, 8):
        save(GIVER, step, float(step))
    found = find_weights(text.format(address=GIVER.address), STORAGE)
    assert load_file(found.place / "model.safetensors")["weight"].tolist() == [8.0] * 3
    assert find_weights(found.pinned, STORAGE) == found
    save(GIVER, 12)
    assert find_weights(found.pinned, STORAGE) == found
