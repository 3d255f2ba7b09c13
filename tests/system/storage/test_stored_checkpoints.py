"""Checkpoints in a store: complete ones count, newest first, and only one of them is downloaded, once."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from paceline.engine.manifest import MANIFEST, verify, write_manifest
from paceline.errors import EnvironmentFault
from paceline.storage.address import RunStore
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import LeaseLost
from paceline.storage.stored_checkpoints import BROKEN, StoredCheckpoints
from support.storage.relay import Relay

Move = Callable[..., StoredCheckpoints]


def held(run: RunStore) -> RunStore:
    """The run, whose launch has the lease."""
    Lease(RemoteFolder(run.home), run.launch).renew()
    return run


@pytest.fixture
def run(remote: RemoteFolder) -> RunStore:
    return held(RunStore(str(remote.address.pinned()), "net", "run-1", str(remote.address), "first"))


@pytest.fixture
def checkpoints(run: RunStore) -> StoredCheckpoints:
    return StoredCheckpoints(run)


@pytest.fixture
def elsewhere(run: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Goes to a machine without a working copy."""

    def move(machine: str = "second", **changes: object) -> StoredCheckpoints:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / machine))
        return StoredCheckpoints(held(replace(run, **changes)))  # type: ignore[arg-type]

    return move


def saved(checkpoints: StoredCheckpoints, step: int, mark: str = "") -> Path:
    """A whole checkpoint in the working copy."""
    folder = checkpoints.folder / f"step-{step}"
    folder.mkdir(parents=True)
    weights = np.frombuffer(f"weights of {step}{mark}".encode() * 100, dtype=np.uint8)
    save_file({"weights": weights}, folder / "model.safetensors")
    (folder / "state.json").write_text(json.dumps({"position": {"step": step}}))
    write_manifest(folder, step)
    return folder


def put(checkpoints: StoredCheckpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.put(saved(checkpoints, step), lambda: True)


def newest(checkpoints: StoredCheckpoints) -> tuple[str, list[str]]:
    """The one that is chosen, and those that were passed over, with the reasons."""
    told: list[str] = []
    found = checkpoints.newest(lambda path, reason: told.append(f"{path.name}: {reason}"), lambda: True)
    if found is not None:
        verify(found)
    return found.name if found is not None else "", told


def there(remote: RemoteFolder) -> set[str]:
    return set((remote / "net" / "run-1" / "checkpoints").files())


def test_the_newest_is_downloaded_and_nothing_else(
    checkpoints: StoredCheckpoints, elsewhere: Move, relay: Relay
) -> None:
    assert newest(checkpoints) == ("", [])
    put(checkpoints, 8, 16, 24)
    second = elsewhere()
    relay.forget()
    assert newest(second) == ("step-24", [])
    assert {each.split("checkpoints/")[1] for each in relay.seen("GET .*/step-")} == {
        "step-24/MANIFEST.json",
        "step-24/model.safetensors",
        "step-24/state.json",
    }
    relay.forget()
    second.fetch(24)
    assert relay.seen("GET .*(model|state)") == []


def test_ranks_of_one_machine_download_it_once(checkpoints: StoredCheckpoints, elsewhere: Move, relay: Relay) -> None:
    put(checkpoints, 8)
    second = elsewhere()
    relay.forget()
    ranks = [threading.Thread(target=lambda: StoredCheckpoints(second._run).fetch(8)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert len(relay.seen("GET .*model.safetensors")) == 1
    assert verify(second.folder / "step-8") == 8


def test_a_half_uploaded_one_is_not_seen_and_is_removed(
    checkpoints: StoredCheckpoints, elsewhere: Move, remote: RemoteFolder
) -> None:
    put(checkpoints, 8)
    with pytest.raises(EnvironmentFault) as caught:
        checkpoints.put(saved(checkpoints, 16), lambda: False)
    assert caught.value.code == "record-behind"
    assert "step-16/model.safetensors" in there(remote)
    assert newest(elsewhere()) == ("step-8", [])
    elsewhere().prune(3)
    assert {path.split("/")[0] for path in there(remote)} == {"step-8"}


def flip_a_byte(place: RemoteFolder, name: str) -> None:
    data = bytearray(place.read(name) or b"")
    data[-3] ^= 1
    place.write(name, bytes(data))


def name_a_file_elsewhere(place: RemoteFolder, name: str) -> None:
    """Have the manifest name a file outside the checkpoint."""
    manifest = json.loads(place.read(MANIFEST) or b"")
    manifest["files"]["../../evil"] = manifest["files"][name]
    place.write(MANIFEST, json.dumps(manifest).encode())


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (flip_a_byte, "model.safetensors"),
        (flip_a_byte, MANIFEST),
        (RemoteFolder.remove, "state.json"),
        (name_a_file_elsewhere, "state.json"),
    ],
)
def test_a_broken_one_is_marked_for_the_one_before(
    checkpoints: StoredCheckpoints,
    elsewhere: Move,
    remote: RemoteFolder,
    tmp_path: Path,
    damage: Callable[[RemoteFolder, str], None],
    name: str,
) -> None:
    put(checkpoints, 8, 16)
    damage(remote / "net" / "run-1" / "checkpoints" / "step-16", name)
    found, told = newest(elsewhere())
    assert found == "step-8"
    assert len(told) == 1
    assert told[0].startswith(f"step-16: {name} " if damage is flip_a_byte else "step-16: ")
    assert damage is name_a_file_elsewhere or name in told[0]
    assert not list(tmp_path.rglob("evil"))
    assert f"step-16/{BROKEN}" in there(remote)
    assert (f"step-16/{name}" in there(remote)) is (damage is not RemoteFolder.remove)
    assert newest(elsewhere("third")) == ("step-8", [])
    again = elsewhere("third")
    again.put(saved(again, 16), lambda: True)
    assert newest(elsewhere("fourth")) == ("step-16", [])


def test_old_ones_go_and_broken_ones_stay(checkpoints: StoredCheckpoints, remote: RemoteFolder) -> None:
    put(checkpoints, 8, 16, 24, 32)
    (remote / "net" / "run-1" / "checkpoints" / "step-24").write(BROKEN, b"{}")
    checkpoints.prune(2)
    assert {path.split("/")[0] for path in there(remote)} == {"step-16", "step-24", "step-32"}


@pytest.mark.parametrize(
    ("launch", "found"),
    [({}, "step-16"), ({"launch": "second", "trusted": ("first",)}, "step-16"), ({"launch": "second"}, "step-8")],
    ids=["the same", "one that has its record", "another"],
)
def test_a_copy_that_did_not_reach_the_store_counts_for_some_launches(
    checkpoints: StoredCheckpoints, run: RunStore, remote: RemoteFolder, launch: dict[str, Any], found: str
) -> None:
    newest(checkpoints)
    put(checkpoints, 8)
    saved(checkpoints, 16)
    assert newest(StoredCheckpoints(held(replace(run, **launch)))) == (found, [])
    assert (checkpoints.folder / "step-16").exists() is (found == "step-16")
    assert (f"step-16/{MANIFEST}" in there(remote)) is (found == "step-16")


def test_a_copy_of_another_content_is_replaced(checkpoints: StoredCheckpoints, elsewhere: Move, run: RunStore) -> None:
    newest(checkpoints)
    put(checkpoints, 8)
    second = elsewhere()
    second.put(saved(second, 8, mark="b"), lambda: True)
    first = elsewhere("cache-of-tests", launch="second")
    assert newest(first) == ("step-8", [])
    assert (first.folder / "step-8" / "model.safetensors").read_bytes().count(b"weights of 8b")


def test_nothing_counts_any_more_once_another_one_has_taken_over(
    checkpoints: StoredCheckpoints, remote: RemoteFolder
) -> None:
    Lease(remote / "net", "another").renew()
    with pytest.raises(LeaseLost):
        put(checkpoints, 8)
    assert f"step-8/{MANIFEST}" not in there(remote)
