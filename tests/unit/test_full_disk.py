"""Errors of a disk that takes no more are told apart from all others, wherever in a chain of errors they are."""

import errno
import os
import pickle
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError

from paceline.engine.failure import describe
from paceline.engine.outcome import CheckpointLost
from paceline.full_disk import has_room, is_full_disk
from support.cluster.coordinators import no_space


def error_of(number: int, filename: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), filename)


def caused_by(cause: BaseException, error: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


def raised_while_handling(before: BaseException) -> BaseException:
    try:
        try:
            raise before
        except OSError:
            raise KeyError("cache")  # noqa: B904
    except KeyError as raised:
        return raised


FULL = [
    error_of(errno.ENOSPC),
    error_of(errno.EDQUOT, "/home/me/runs/x"),
    error_of(errno.EROFS, "/runs/x"),
    pickle.loads(pickle.dumps(error_of(errno.ENOSPC, "/runs/x"))),
    caused_by(error_of(errno.ENOSPC), CheckpointLost("no", "checkpoint-lost")),
    raised_while_handling(error_of(errno.ENOSPC)),
    shutil.Error([("a", "b", str(error_of(errno.ENOSPC)))]),
    pickle.loads(pickle.dumps(caused_by(shutil.Error([]), OSError(f"not copied: {error_of(errno.ENOSPC)}")))),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
]
OTHERS = [
    error_of(errno.EACCES),
    error_of(errno.ENOENT),
    error_of(errno.EIO),
    error_of(errno.ENOSPC, "/dev/shm/torch_1"),
    OSError("not copied"),
    OSError(f"not copied: {error_of(errno.ENOSPC, '/dev/shm/torch_1')}"),
    CheckpointLost("no", "checkpoint-lost"),
    RuntimeError("No space left on device"),  # of whatever kind: a user's own text says nothing
    SafetensorError("Error while deserializing header: InvalidHeaderDeserialization"),
    MemoryError(),
]


@pytest.mark.parametrize("error", FULL)
def test_full_disk_is_found(error: BaseException) -> None:
    assert is_full_disk(error)
    assert describe(error, 0).kind == "full_disk"


@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_are_none(error: BaseException) -> None:
    assert not is_full_disk(error)
    assert describe(error, 0).kind != "full_disk"


def test_a_chain_that_leads_back_to_itself_has_an_end() -> None:
    first, second = KeyError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_full_disk(first)


def test_a_probe_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_room(tmp_path)
    for name in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, no_space)
            assert not has_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert has_room(tmp_path / "gone")  # that is another trouble, which the next write reports
