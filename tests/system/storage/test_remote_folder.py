"""A folder in an object store: whole files or none, errors with codes, and patience with those that pass."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.engine.manifest import hash_file
from paceline.errors import EnvironmentFault
from paceline.storage import remote_folder as remote_folder
from paceline.storage.address import parse
from paceline.storage.remote_folder import RemoteFolder
from support.golden import Golden
from support.storage.relay import Relay
from support.storage.server import moto

LARGE_MIB = 64


def test_files_come_and_go_and_probing_leaves_nothing(remote: RemoteFolder, tmp_path: Path) -> None:
    remote.probe()
    assert remote.files() == {}
    folder = remote / "a"
    assert folder.read("x") is None
    assert folder.files() == {}
    folder.write("x", b"one")
    folder.write("x", b"two")
    (tmp_path / "y").write_bytes(b"yyyy")
    folder.upload("b/y", tmp_path / "y")
    assert folder.files() == {"x": 3, "b/y": 4}
    assert folder.folders() == ["b"]
    folder.download("b/y", tmp_path / "z")
    assert (tmp_path / "z").read_bytes() == b"yyyy"
    with pytest.raises(FileNotFoundError, match="b/none"):
        folder.download("b/none", tmp_path / "z")
    folder.remove("x")
    folder.remove("x")
    folder.remove_all()
    folder.remove_all()
    assert folder.files() == {}


def test_a_full_disk_of_this_machine_is_no_fault_of_the_store(remote: RemoteFolder, tmp_path: Path) -> None:
    remote.write("x", b"one")
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        remote.download("x", full)
    assert not isinstance(caught.value, EnvironmentFault)
    assert caught.value.filename == str(full)


@pytest.mark.parametrize("limit", [remote_folder.MAX_COPY_BYTES, 2], ids=["by the store", "through this machine"])
def test_files_are_copied_within_the_store(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(remote_folder, "MAX_COPY_BYTES", limit)
    (remote / "a").write("x", b"one")
    (remote / "b" / "c").write("x", b"older")
    (remote / "a").copy("x", remote / "b" / "c", 3)
    assert (remote / "b" / "c").read("x") == b"one"
    with pytest.raises(FileNotFoundError, match="a/none"):
        (remote / "a").copy("none", remote / "b", 3)


def test_only_a_part_of_a_large_file_is_in_memory(remote: RemoteFolder, tmp_path: Path) -> None:
    large, back = tmp_path / "large", tmp_path / "back"
    with large.open("wb") as file:
        for number in range(LARGE_MIB):
            file.write(bytes([number]) * (1 << 20))
    code = f"""
import resource, sys
from pathlib import Path
from paceline.storage.address import parse
from paceline.storage.remote_folder import RemoteFolder

remote = RemoteFolder(parse({str(remote.address)!r}))
remote.write("small", b"x" * (9 << 20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
remote.upload("large", Path({str(large)!r}))
remote.download("large", Path({str(back)!r}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < LARGE_MIB / 2
    assert hash_file(back) == hash_file(large)


def test_a_store_that_is_away_for_a_moment_is_waited_for_and_one_that_stays_away_is_reported(
    remote: RemoteFolder, relay: Relay
) -> None:
    remote.write("x", b"x")
    relay.leave()
    with pytest.raises(EnvironmentFault) as caught:
        remote.patient(0.0).write("x", b"y")
    assert (caught.value.code, caught.value.fields["address"]) == ("store-silent", remote.address.bare)
    threading.Timer(0.3, relay.come).start()
    assert remote.patient(60.0).read("x") == b"x"


def test_a_missing_bucket_is_reported_at_once(environment: dict[str, str]) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        RemoteFolder(parse("s3://no-such-bucket/runs"), patience_seconds=60.0).probe()
    assert (caught.value.code, caught.value.exit_code) == ("no-such-bucket", 3)


def test_wrong_credentials_are_reported_at_once(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto(tmp_path / "log", INITIAL_NO_AUTH_ACTION_COUNT="0") as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        with pytest.raises(EnvironmentFault) as caught:
            RemoteFolder(parse("s3://bucket/runs"), patience_seconds=60.0).probe()
    assert caught.value.code in ("credentials-unknown", "access-denied")
    assert "testing-testing" not in str(caught.value)


def test_a_server_that_never_answers_is_not_waited_for(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(EnvironmentFault) as caught:
            RemoteFolder(parse("s3://bucket/runs")).probe(0.3)
    assert caught.value.code == "store-silent"
    golden(str(caught.value))
