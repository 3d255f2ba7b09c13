"""A run's own files that are no longer what was written: each costs only itself, and MLflow gets the rest."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking.cursor import CURSOR_FILE, Cursor
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.points import Point
from paceline.tracking.record import DamagedRecord, RunRecord
from paceline.tracking.recorder import Recorder, sync, unsent

Make = Callable[..., RunRecord]

NO_ENTRIES = [
    b"[1]",
    b"5",
    b"null",
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
    b'{"n":9,"kind":"status","status":5,"time_ms":1}',
    b'{"n":9,"kind":"artifact","path":"../../../etc/passwd"}',
    b'{"n":9,"kind":"artifact"}',
    b'{"n":9,"kind":"datasets","sets":5,"source":""}',
    b'{"n":9,"kind":"model"}',
]


@pytest.mark.parametrize("line", NO_ENTRIES, ids=lambda line: line[:60].decode())
@pytest.mark.parametrize("place", ["amid", "end"])
def test_a_line_that_is_no_entry_is_passed_over(tmp_path: Path, line: bytes, place: str) -> None:
    journal = Journal(tmp_path / JOURNAL_FILE)
    points = [Point("a", value, step, 1) for step, value in ((1, 0.5), (2, float("nan")), (3, float("inf")))]
    journal.append([("point", point.to_json()) for point in points])
    journal.close()
    lines = journal.path.read_bytes().splitlines(True)
    lines.insert(1 if place == "amid" else 3, line + b"\n")
    journal.path.write_bytes(b"".join(lines))
    again = Journal(journal.path)
    assert [(entry.sequence, entry.content["step"]) for entry in again.scan()] == [(1, 1), (2, 2), (3, 3)]
    assert again.last_sequence == 3


@pytest.fixture
def sent(sqlite_uri: str, record: Make, points: Callable[..., list[Point]], tmp_path: Path) -> tuple[Path, RunRecord]:
    """A run that MLflow has all of; its recorder's folder."""
    about = record(sqlite_uri, picture=False)
    recorder = Recorder(tmp_path / "run", about)
    recorder.append(points(1, 6))
    assert recorder.close("FINISHED").unsent == 0
    return tmp_path / "run", about


@pytest.mark.parametrize("again", [2, 9], ids=["shorter than before", "longer than before"])
def test_a_journal_that_has_lost_its_end_is_sent_anew(
    sent: tuple[Path, RunRecord],
    again: int,
    points: Callable[..., list[Point]],
    stored: Callable[..., list[Any]],
    runs_of: Callable[[RunRecord], list[str]],
) -> None:
    folder, about = sent
    file = folder / JOURNAL_FILE
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:2]))
    assert unsent(folder) == 2
    recorder = Recorder(folder, about)  # as a run does that goes on
    recorder.append(points(6, 6 + again))
    recorder.conclude("FAILED", "it was unlucky")
    recorder.abandon()
    report = sync(folder)
    assert (report.unsent, report.error) == (0, None)
    (run_id,) = runs_of(about)
    assert report.run_id == run_id
    assert [step for _, step, _, _ in stored(about.uri, run_id)] == list(range(1, 6 + again))
    from paceline.tracking import remote

    assert remote.connect(about.uri).get_run(run_id).info.status == "FAILED"
    assert sync(folder).sent == 0


CURSORS: list[dict[str, Any]] = [
    {"offset": "x"},
    {"offset": -5},
    {"offset": True},
    {"offset": 10**6},
    {"sequence": 10**6},
    {"sequence": 1},
    {"sequence": None},
    {"deferred": None},
    {"deferred": ["../../secret"]},
    {"refused": 5},
    {"run_id": 5},
    {"experiment_id": "77"},
    {"diverged": "x"},
    {"lag_step": "x"},
    {"error": None},
    {"colour": "blue"},
]


@pytest.mark.parametrize("change", CURSORS, ids=map(str, range(len(CURSORS))))
def test_a_damaged_cursor_is_started_over(sent: tuple[Path, RunRecord], change: dict[str, Any]) -> None:
    folder, about = sent
    file = folder / CURSOR_FILE
    before = json.loads(file.read_bytes())
    file.write_text(json.dumps({**before, **change}))
    began = time.monotonic()
    recorder = Recorder(folder, about)
    report = recorder.close("FINISHED", timeout_seconds=15.0)
    assert (report.unsent, report.error) == (0, None)
    assert time.monotonic() - began < 10
    after = Cursor.load(file)
    assert (after.run_id, after.experiment_id) == (before["run_id"], before["experiment_id"])


def test_a_cursor_that_cannot_be_written_is_told_as_what_it_is(
    sqlite_uri: str, record: Make, points: Callable[..., list[Point]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / CURSOR_FILE).mkdir()
    recorder = Recorder(tmp_path, record(sqlite_uri, picture=False))
    recorder.append(points(1, 6))
    report = recorder.close("FINISHED", timeout_seconds=5.0)
    assert report.unsent == 0
    assert f"the run's folder {tmp_path} cannot be used: Is a directory" in caplog.text
    assert "do not reach MLflow" not in caplog.text
    (tmp_path / CURSOR_FILE).rmdir()
    assert sync(tmp_path).unsent == 0


@pytest.mark.parametrize("field", ["run_id", "name", "uri", "experiment", "params", "tags", "artifacts", "views"])
@pytest.mark.parametrize("value", [None, 5, [1]], ids=str)
def test_a_record_with_a_wrong_field_names_it(tmp_path: Path, record: Make, field: str, value: Any) -> None:
    record("http://host").save(tmp_path)
    file = tmp_path / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), field: value}))
    with pytest.raises(DamagedRecord, match=f"{file}: the field '{field}' cannot be .*; put the file back"):
        RunRecord.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("parent", []), ("start_time_ms", "x"), ("start_time_ms", 10**30), ("picture", None), ("title", 5), ("folder", 1)],
)
def test_and_so_do_the_others(tmp_path: Path, record: Make, field: str, value: Any) -> None:
    test_a_record_with_a_wrong_field_names_it(tmp_path, record, field, value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "it holds no fields"),
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("{}", "'run_id' is missing"),
        ('{"colour": 1}', "'colour' is not known"),
    ],
)
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(DamagedRecord, match=reason):
        RunRecord.load(tmp_path)
