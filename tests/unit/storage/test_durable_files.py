"""Files that survive a crash: the old content or the new, never a part of one."""

import errno
import os
from pathlib import Path

import pytest

from paceline.durable import write_durably, write_synced


def test_a_file_is_put_in_place_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "record.json"
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["record.json"]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_durably(path, b"old")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        write_durably(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("write", [write_durably, write_synced])
def test_all_of_it_is_written_and_synced_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    data, synced, write_some, sync = os.urandom(1000), [], os.write, os.fsync

    def in_parts(descriptor: int, rest: bytes) -> int:
        return write_some(descriptor, bytes(rest[:300]))  # as the system may do with a large file

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "write", in_parts)
    monkeypatch.setattr(os, "fsync", note)
    write(tmp_path / "file", data)  # type: ignore[operator]
    assert (tmp_path / "file").read_bytes() == data
    assert synced[0] == len(data)
