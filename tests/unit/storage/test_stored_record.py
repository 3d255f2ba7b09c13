"""An append-only file in a store: as parts, of which only the last one is written again."""

import errno
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from paceline.storage import stored_record
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_record import StoredLog, joined
from paceline.tracking.journal import Journal
from support.storage.local_store import LocalStore
from support.storage.stores import STORAGE, play_store


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    monkeypatch.setattr(stored_record, "PART_BYTES", 10)
    return play_store(tmp_path, monkeypatch)


@pytest.fixture
def parts() -> RemoteFolder:
    return RemoteFolder(STORAGE) / "log.jsonl"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def names_of(store: LocalStore) -> list[int]:
    return [int(place.rpartition("/")[2]) for place in store.written]


def test_only_the_last_part_is_written_again(file: Path, parts: RemoteFolder, store: LocalStore) -> None:
    log = StoredLog(parts, file)
    for text in ("one\n", "two\n", "three\n", "four\n"):
        append(file, text)
        log.push(file.stat().st_size)
    assert names_of(store) == [0, 0, 0, 10, 10]
    assert joined(parts) == file.read_bytes()
    assert log.stored_bytes == 19
    log.push(19)
    assert len(store.written) == 5


def test_a_line_on_its_way_is_not_read(file: Path, parts: RemoteFolder) -> None:
    log = StoredLog(parts, file)
    assert log.read(0) == b""
    append(file, "one\ntw")
    assert log.read(0) == b"one\n"
    append(file, "o\n")
    assert log.read(4) == b"two\n"


def test_lines_that_a_full_disk_did_not_take_are_not_read(
    file: Path, parts: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, journal = StoredLog(parts, file), Journal(file, is_whole=lambda kind, content: True)
    journal.append([("trial", {"id": "0000"})])
    before = file.read_bytes()
    with ThreadPoolExecutor(1) as threads:
        readings: list[Future[bytes]] = []

        def full_disk(descriptor: int) -> None:
            readings.append(threads.submit(log.read, 0))
            wait(readings, timeout=0.2)
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("paceline.tracking.journal.os.fsync", full_disk)
            with pytest.raises(OSError, match="No space left"):
                journal.append([("trial", {"id": "0001"})])
        assert readings[0].result() == before


@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_another_machine_continues_the_file(file: Path, parts: RemoteFolder, tmp_path: Path, lines: int) -> None:
    append(file, "1234\n" * lines)
    StoredLog(parts, file).push(5 * lines)
    there = tmp_path / "there.jsonl"
    there.write_text("other\n")
    log = StoredLog(parts, there)
    assert not log.take_over(may_be_ahead=True)
    assert there.read_bytes() == file.read_bytes()
    append(there, "more\n")
    log.push(there.stat().st_size)
    assert joined(parts) == there.read_bytes()


def test_a_file_that_is_ahead_stays(file: Path, parts: RemoteFolder) -> None:
    append(file, "one\n")
    StoredLog(parts, file).push(4)
    append(file, "two\n")
    log = StoredLog(parts, file)
    assert log.take_over(may_be_ahead=True)
    assert log.stored_bytes == 4
    log.push(8)
    assert joined(parts) == b"one\ntwo\n"
    append(file, "three\n")
    assert not StoredLog(parts, file).take_over(may_be_ahead=False)
    assert file.read_bytes() == b"one\ntwo\n"


def test_a_push_that_was_cut_short_ends_with_a_whole_line(file: Path, parts: RemoteFolder) -> None:
    parts.write("000000000000", b"one\ntwo\nth")
    log = StoredLog(parts, file)
    log.take_over(may_be_ahead=False)
    assert file.read_bytes() == b"one\ntwo\n"
    append(file, "four\n")
    log.push(13)
    assert joined(parts) == b"one\ntwo\nfour\n"
