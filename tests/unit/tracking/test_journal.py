"""The journal keeps what it acknowledged: through torn lines, a full disk, two writers, and damage to single lines."""

import errno
import fcntl
import math
import os
import stat
from pathlib import Path

import pytest

from paceline.tracking.journal import JOURNAL_FILE, Journal, can_lock
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.recorded_run import PointHistories, read_points
from support.logged import Logged
from support.tracking.journals import items, numbers


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / JOURNAL_FILE)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_entries_come_back_numbered_and_in_order_from_a_file_for_the_owner_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / JOURNAL_FILE)
    journal.append(items(10, 20))
    journal.append(items(30))
    assert numbers(Journal(journal.path)) == [(1, 10), (2, 20), (3, 30)]
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_a_removed_file_is_written_again_as_soon_as_there_is_room(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(items(1, 2))
    journal.path.unlink()
    monkeypatch.setattr("paceline.tracking.journal.COPY_BYTES", 5)
    for room in (0, 3):
        written: list[bytes] = []

        def write(descriptor: int, data: bytes, room: int = room, written: list[bytes] = written) -> None:
            if len(written) == room:
                fail(errno.ENOSPC)
            written.append(data)
            os.write(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr("paceline.tracking.journal.write_all", write)
            with pytest.raises(OSError, match="No space"):
                journal.append(items(3))
    journal.append(items(3))
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 2), (3, 3)]
    journal.close()


@pytest.mark.parametrize("torn", [b'{"n":3,"kind":"own","v":3', b"\0\0\0\0", b'{"n":3}\n'])
def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_append(journal: Journal, torn: bytes) -> None:
    journal.append(items(1, 2))
    with journal.path.open("ab") as file:
        file.write(torn)
    reopened = Journal(journal.path)
    assert numbers(reopened) == [(1, 1), (2, 2)]
    reopened.append(items(3))
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 2), (3, 3)]
    assert len(journal.path.read_bytes().splitlines()) == 3


def test_reading_does_not_change_the_file_of_another_writer(journal: Journal) -> None:
    journal.path.write_bytes(b'{"n":1,"kind":"own","v":1}\n{"n":2,"ki')
    before = journal.path.read_bytes()
    assert numbers(journal) == [(1, 1)]
    assert list(journal.scan())[-1].end == 27
    assert journal.path.read_bytes() == before


def test_reading_continues_where_it_stopped_and_not_past_the_durable_end(journal: Journal) -> None:
    journal.append(items(1, 2))
    durable = journal.size
    first = next(journal.read())
    with journal.path.open("ab") as file:
        file.write(b'{"n":3,"kind":"own","v":3}\n')
    assert [entry.sequence for entry in journal.read(first.end, durable)] == [2]


def test_a_batch_that_does_not_fit_the_disk_leaves_nothing_behind(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(items(1))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            fail(errno.ENOSPC)
        return write(descriptor, bytes(data)[:20])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError) as caught:  # noqa: PT011
            journal.append(items(2))
    assert caught.value.errno == errno.ENOSPC
    journal.append(items(3))
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 3)]


def test_every_batch_is_synced_once_and_again_by_the_next_writer(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(items(1))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    file = journal.path.stat().st_ino
    journal.append(items(*range(100)))
    assert synced == [file]
    with Journal(journal.path).alone():  # whoever wrote before may have died before it synced
        assert synced.count(file) == 2


def test_each_of_two_writers_sees_the_entries_of_the_other(journal: Journal) -> None:
    seen: list[int] = []
    other = Journal(journal.path, lambda entry: seen.append(entry.content["v"]))
    journal.append(items(1, 2))
    other.append(items(3))
    assert seen == [1, 2]
    journal.append(items(4))
    other.append(items(5))
    assert seen == [1, 2, 4]
    assert numbers(journal) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    assert (journal.last_sequence, other.last_sequence) == (4, 5)


# A file system without locks


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre is, when it was mounted without `flock`."""
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, kind: fail(errno.ENOSYS))


def test_without_locks_half_of_another_writers_line_is_not_cut_off(journal: Journal, no_locks: None) -> None:
    journal.append(items(1))
    line = b'{"n":2,"kind":"own","v":2}\n'
    with journal.path.open("ab", buffering=0) as other:
        other.write(line[:10])
        with journal.alone():  # as the uploader does before each round
            pass
        other.write(line[10:])
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 2)]
    journal.append(items(3))
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 2), (3, 3)]
    assert journal.size == journal.path.stat().st_size


def test_without_locks_an_entry_behind_a_torn_line_is_whole(journal: Journal, no_locks: None) -> None:
    Journal(journal.path).append(items(1))
    with journal.path.open("ab") as file:
        file.write(b'{"n":2,"ki')
    journal.append(items(2))
    journal.append(items(3))
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 2), (3, 3)]
    assert journal.size == journal.path.stat().st_size


def test_without_locks_a_batch_that_was_not_synced_is_known_when_it_comes_again(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    journal = Journal(tmp_path / JOURNAL_FILE, lambda entry: seen.append(entry.content["v"]))
    journal.append(items(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: fail(errno.ENOSPC))
        with pytest.raises(OSError) as caught:  # noqa: PT011
            journal.append(items(2))
    assert caught.value.errno == errno.ENOSPC
    journal.append(items(3))
    assert seen == [2]
    assert numbers(Journal(journal.path)) == [(1, 1), (2, 2), (3, 3)]


def test_locks_are_tried_without_leaving_a_file(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert can_lock(tmp_path)
    assert not can_lock(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
    request.getfixturevalue("no_locks")
    assert not can_lock(tmp_path)


# Damaged lines


NO_ENTRIES = [
    b"#!?",
    b"[1]",
    b"{}",
    b"[" * 100_000,
    b'{"n":9,"kind":5}',
    b'{"n":"x","kind":"own"}',
    b'{"n":-1,"kind":"own"}',
    b'{"n":20000,"kind":"point"}',
    b'{"n":9,"kind":"point","key":5,"value":1,"step":1,"timestamp_ms":1}',
    b'{"n":9,"kind":"point","key":"a","value":"zz","step":1,"timestamp_ms":1}',
    b'{"n":9,"kind":"point","key":"a","value":null,"step":1,"timestamp_ms":1}',
    b'{"n":9,"kind":"point","key":"a","value":1,"step":1e300,"timestamp_ms":1}',
    b'{"n":9,"kind":"point","key":"a","value":1,"step":1,"timestamp_ms":99999999999999999999}',
    b'{"n":9,"kind":"tags","tags":5}',
    b'{"n":9,"kind":"tags","tags":{"a":5}}',
    b'{"n":9,"kind":"status"}',
    b'{"n":9,"kind":"status","status":"FINISHED","time_ms":null}',
    b'{"n":9,"kind":"artifact","path":"../../../etc/passwd"}',
    b'{"n":9,"kind":"datasets","sets":5,"source":""}',
    b'{"n":9,"kind":"model"}',
]


@pytest.mark.parametrize("line", NO_ENTRIES, ids=lambda line: line[:60].decode())
def test_a_line_that_is_no_entry_costs_only_itself(tmp_path: Path, line: bytes, logged: Logged) -> None:
    taken = [MetricPoint("a", value, step, 1) for step, value in ((1, 0.5), (2, math.nan), (3, math.inf))]
    for place in (1, 3):  # in the middle, and at the end
        journal = Journal(tmp_path / str(place) / JOURNAL_FILE)
        journal.append([("point", point.to_json()) for point in taken])
        journal.close()
        lines = journal.path.read_bytes().splitlines(True)
        lines.insert(place, line + b"\n")
        journal.path.write_bytes(b"".join(lines))
        logged.records.clear()
        again = Journal(journal.path)
        assert [(entry.sequence, entry.content["step"]) for entry in again.scan()] == [(1, 1), (2, 2), (3, 3)]
        assert again.last_sequence == 3
        assert len(logged.records) == 1


# Points, read from the journals of runs


POINTS = [
    MetricPoint("train/loss", 2.5, 1, 10),
    MetricPoint("val/loss", math.inf, 1, 11),
    MetricPoint('odd "key", \\ ü', 1.0, 2, 12),
    MetricPoint("train/loss", 2.0, 2, 13),
]


def write(folder: Path, points: list[MetricPoint]) -> Path:
    journal = Journal(folder / JOURNAL_FILE)
    journal.append([("tags", {"tags": {"a": 'no "kind":"point" of its own'}})])
    journal.append([("point", point.to_json()) for point in points])
    journal.append([("status", {"status": "FINISHED", "time_ms": 1})])
    journal.close()
    return folder


def test_points_come_back_by_key_and_a_torn_or_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    folder = write(tmp_path, POINTS)
    assert read_points(folder) == POINTS
    assert read_points(folder, ["train/loss"]) == [POINTS[0], POINTS[3]]
    assert read_points(folder, ['odd "key", \\ ü']) == [POINTS[2]]
    assert read_points(folder, ["loss", "train"]) == []
    assert read_points(tmp_path / "none") == []
    torn = b'{"n":9,"kind":"point","key":"train/loss","value":9.0,"step":9,"timestamp_ms":9}'
    damaged = b'{"n":8,"kind":"point","key":"train/loss","value":\n{"kind":"point"}\n[1]\n'
    file = folder / JOURNAL_FILE
    file.write_bytes(file.read_bytes() + damaged + torn)
    assert read_points(tmp_path) == POINTS
    file.write_bytes(file.read_bytes() + b"\n")
    assert [point.step for point in read_points(tmp_path, ["train/loss"])] == [1, 2, 9]


def test_histories_read_each_journal_once_and_only_when_asked(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "two", "none")}
    write(folders["one"], POINTS)
    histories = PointHistories(folders, ["train/loss"])
    write(folders["two"], POINTS[:1])  # after it was made
    assert [len(histories[name]) for name in histories] == [2, 1, 0]
    (folders["one"] / JOURNAL_FILE).unlink()
    assert len(histories["one"]) == 2
    assert histories.get("another") is None
