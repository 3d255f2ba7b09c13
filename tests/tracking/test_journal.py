"""The journal keeps what it acknowledged, through torn lines and a full disk."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.tracking.journal import Journal, can_lock


def _numbers(journal: Journal) -> list[tuple[int, int]]:
    return [(entry.sequence, entry.content["v"]) for entry in journal.read()]


def _items(*values: int) -> list[tuple[str, dict[str, int]]]:
    return [("own", {"v": value}) for value in values]


def test_entries_come_back_numbered_and_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "journal.jsonl")
    journal.append(_items(10, 20))
    journal.append(_items(30))
    assert _numbers(Journal(journal.path)) == [(1, 10), (2, 20), (3, 30)]


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(_items(1))
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", [b'{"n":3,"kind":"own","v":3', b"\0\0\0\0", b'{"n":3}\n'])
def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_append(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append(_items(1, 2))
    with path.open("ab") as file:
        file.write(torn)
    reopened = Journal(path)
    assert _numbers(reopened) == [(1, 1), (2, 2)]
    reopened.append(_items(3))
    assert _numbers(Journal(path)) == [(1, 1), (2, 2), (3, 3)]
    assert len(path.read_bytes().splitlines()) == 3


def test_reading_does_not_change_the_file_of_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1,"kind":"own","v":1}\n{"n":2,"ki')
    before = path.read_bytes()
    assert _numbers(Journal(path)) == [(1, 1)]
    assert list(Journal(path).scan())[-1].end == 27
    assert path.read_bytes() == before


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1,"kind":"own","v":1}\n#!?\n{"n":3,"kind":"own","v":3}\n')
    assert _numbers(Journal(path)) == [(1, 1), (3, 3)]
    assert "damaged" in caplog.text


def test_reading_goes_on_where_it_stopped_and_not_past_what_is_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(_items(1, 2))
    durable = journal.size
    first = next(journal.read())
    with journal.path.open("ab") as file:
        file.write(b'{"n":3,"kind":"own","v":3}\n')
    assert [entry.sequence for entry in journal.read(first.end, durable)] == [2]


def test_a_batch_that_does_not_fit_the_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(_items(1))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(data)[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(_items(2))
    monkeypatch.undo()
    journal.append(_items(3))
    assert _numbers(Journal(journal.path)) == [(1, 1), (2, 3)]


def test_every_batch_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(_items(1))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal.append(_items(*range(100)))
    assert len(synced) == 1


def test_two_that_append_see_what_the_other_has_added(tmp_path: Path) -> None:
    told: list[int] = []
    one = Journal(tmp_path / "journal.jsonl")
    other = Journal(one.path, lambda entry: told.append(entry.content["v"]))
    one.append(_items(1, 2))
    other.append(_items(3))
    assert told == [1, 2]
    one.append(_items(4))
    other.append(_items(5))
    assert told == [1, 2, 4]
    assert _numbers(one) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    assert (one.last_sequence, other.last_sequence) == (4, 5)


def test_what_was_acknowledged_before_another_one_opened_the_file_is_not_cut_off(tmp_path: Path) -> None:
    old = Journal(tmp_path / "journal.jsonl")
    old.append(_items(1))
    new = Journal(old.path)
    assert [entry.sequence for entry in new.scan()] == [1]
    old.append(_items(2))  # after the new one has looked, before it appends
    new.append(_items(3))
    assert _numbers(new) == [(1, 1), (2, 2), (3, 3)]


APPEND = """
import sys
from pathlib import Path
from paceline.tracking.journal import Journal, can_lock
journal = Journal(Path(sys.argv[1]))
for number in range(200):
    journal.append([("own", {"v": number})] * 3)
"""


def test_two_processes_at_once_tear_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", APPEND, str(path)]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    found = _numbers(Journal(path))
    assert [number for number, _ in found] == list(range(1, 1201))
    assert sorted(value for _, value in found) == sorted([*range(200)] * 6)


# A file system without locks


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre is, when it was mounted without `flock`."""

    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_the_half_of_another_ones_line_is_not_cut_off(tmp_path: Path, no_locks: None) -> None:
    path = tmp_path / "journal.jsonl"
    mine = Journal(path)
    mine.append(_items(1))
    line = b'{"n":2,"kind":"own","v":2}\n'
    with path.open("ab", buffering=0) as other:
        other.write(line[:10])
        with mine.alone():  # as whoever ships does, before each round
            pass
        other.write(line[10:])
    assert _numbers(Journal(path)) == [(1, 1), (2, 2)]
    mine.append(_items(3))
    assert _numbers(Journal(path)) == [(1, 1), (2, 2), (3, 3)]
    assert mine.size == path.stat().st_size


def test_without_locks_an_entry_behind_a_torn_line_is_whole(tmp_path: Path, no_locks: None) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append(_items(1))
    with path.open("ab") as file:
        file.write(b'{"n":2,"ki')
    journal = Journal(path)
    journal.append(_items(2))
    journal.append(_items(3))
    assert _numbers(Journal(path)) == [(1, 1), (2, 2), (3, 3)]
    assert journal.size == path.stat().st_size


def test_without_locks_a_batch_that_could_not_be_synced_is_known_when_it_comes_again(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    journal = Journal(tmp_path / "journal.jsonl", lambda entry: told.append(entry.content["v"]))
    journal.append(_items(1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            journal.append(_items(2))
    journal.append(_items(3))
    assert told == [2]
    assert _numbers(Journal(journal.path)) == [(1, 1), (2, 2), (3, 3)]


def test_whether_there_are_locks_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    assert can_lock(tmp_path)
    assert not can_lock(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_without_locks_there_are_none(tmp_path: Path, no_locks: None) -> None:
    assert not can_lock(tmp_path)
