"""The journal keeps what it acknowledged, through torn lines and a full disk."""

import os
import stat
from pathlib import Path

import pytest

from paceline.tracking.journal import Journal


def _numbers(journal: Journal) -> list[tuple[int, int]]:
    return [(entry.sequence, entry.content["v"]) for entry in journal.read()]


def _items(*values: int) -> list[tuple[str, dict[str, int]]]:
    return [("point", {"v": value}) for value in values]


def test_entries_come_back_numbered_and_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "journal.jsonl")
    journal.append(_items(10, 20))
    journal.append(_items(30))
    assert _numbers(Journal(journal.path)) == [(1, 10), (2, 20), (3, 30)]


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(_items(1))
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", [b'{"n":3,"kind":"point","v":3', b"\0\0\0\0", b'{"n":3}\n'])
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
    path.write_bytes(b'{"n":1,"kind":"point","v":1}\n{"n":2,"ki')
    before = path.read_bytes()
    assert _numbers(Journal(path)) == [(1, 1)]
    assert list(Journal(path).scan())[-1].end == 29
    assert path.read_bytes() == before


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1,"kind":"point","v":1}\n#!?\n{"n":3,"kind":"point","v":3}\n')
    assert _numbers(Journal(path)) == [(1, 1), (3, 3)]
    assert "damaged" in caplog.text


def test_reading_goes_on_where_it_stopped_and_not_past_what_is_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(_items(1, 2))
    durable = journal.size
    first = next(journal.read())
    with journal.path.open("ab") as file:
        file.write(b'{"n":3,"kind":"point","v":3}\n')
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
