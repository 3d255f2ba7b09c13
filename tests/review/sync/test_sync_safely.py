"""`paceline sync` where others sync too, where folders were copied, and where MLflow or a folder has lost something."""

import fcntl
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as run_command
from paceline.cluster.identity import RunFolder, nobody_works_on
from paceline.review import sync as syncing
from paceline.review.alone import LOCK_FILE
from paceline.review.sync import sync_folder
from paceline.tracking import metrics, remote
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, has_ended

RUN = "20260102-000000-bbbbbb"


def taken(steps: int) -> list[Point]:
    now = int(time.time() * 1000)
    return [Point("train/loss", 1.0 / step, step, now + step) for step in range(1, steps + 1)]


def made(storage: Path, uri: str, status: str = "finished") -> tuple[Path, Recorder]:
    """A run that has told MLflow nothing yet."""
    folder = RunFolder(storage / "mnist" / RUN)
    folder.write(status=status, config={"name": "mnist"})
    recorder = Recorder(folder.tracking, RunRecord(RUN, "mnist", uri, "mnist", picture=False))
    recorder.append(taken(5))
    return folder.path, recorder


def ended(storage: Path, database: Path) -> Path:
    """A run that has ended, and told MLflow nothing yet."""
    folder, recorder = made(storage, f"sqlite:///{database}")
    recorder.conclude("FINISHED")
    recorder.abandon()
    return folder


def runs(database: Path) -> list[Any]:
    client = remote.connect(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("mnist")
    return list(client.search_runs([experiment.experiment_id])) if experiment is not None else []


def steps(database: Path, run: Any) -> list[int]:
    client = remote.connect(f"sqlite:///{database}")
    return [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")]


# --- side by side ------------------------------------------------------------------------------------------------


def test_of_two_at_once_one_sends_an_ended_run(storage: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(storage, database)
    send, reports = syncing.sync, []

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(syncing, "sync", send)
        reports.append(sync_folder(storage))
        return send(*given)

    monkeypatch.setattr(syncing, "sync", meanwhile)
    assert sync_folder(storage).records[0].state == "complete"
    ((other,),) = [report.records for report in reports]
    assert (other.state, other.sent, other.reason) == ("going on", 0, "another sync sends this")
    assert reports[0].is_complete
    (run,) = runs(database)
    assert steps(database, run) == [1, 2, 3, 4, 5]


def test_an_ended_run_is_sent_while_a_newer_one_trains(storage: Path, database: Path) -> None:
    ended(storage, database)
    with nobody_works_on(storage / "mnist"):  # as a command does that trains
        assert sync_folder(storage).records[0].state == "complete"


def test_where_there_are_no_locks_it_goes_on(storage: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ended(storage, database)
    flock = fcntl.flock

    def none(file: Any, kind: int) -> None:
        if str(getattr(file, "name", "")) == str(folder / "tracking" / LOCK_FILE):
            raise OSError(38, "Function not implemented")
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", none)
    assert sync_folder(storage).records[0].state == "complete"


# --- copies ------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_running_run_closes_nothing(storage: Path, database: Path, tmp_path: Path) -> None:
    folder, recorder = made(storage, f"sqlite:///{database}", "running")
    recorder.start_shipping()
    deadline = time.monotonic() + 60
    while recorder.report().unsent or not recorder.report().run_id:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    copy = tmp_path / "copied" / "mnist" / RUN
    shutil.copytree(folder, copy)
    (found,) = sync_folder(tmp_path / "copied").records
    assert (found.state, found.sent) == ("copy", 0)
    assert found.reason.startswith(f"a copy of {folder}")
    assert not has_ended(copy / "tracking")
    assert [run.info.status for run in runs(database)] == ["RUNNING"]
    assert recorder.close("FINISHED").unsent == 0


def test_a_run_that_was_moved_is_no_copy(storage: Path, database: Path, tmp_path: Path) -> None:
    folder = ended(storage, database)
    place = tmp_path / "moved" / "mnist" / RUN
    place.parent.mkdir(parents=True)
    folder.rename(place)
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for way in ("moved", "link"):
        (found,) = sync_folder(tmp_path / way / "mnist").records
        assert found.state == "complete"
    Recorder(place / "tracking", RunRecord.load(place / "tracking")).abandon()
    (found,) = sync_folder(tmp_path / "link" / "mnist").records
    assert found.state == "complete"


# --- losses ------------------------------------------------------------------------------------------------------


LOST = {
    "the status": ["UPDATE runs SET status = 'RUNNING', end_time = NULL"],
    "points": [
        "DELETE FROM metrics WHERE key = 'train/loss' AND step > 2",
        "UPDATE latest_metrics SET step = 2, value = 0.5 WHERE key = 'train/loss'",
    ],
    "a metric": ["DELETE FROM metrics", "DELETE FROM latest_metrics"],
}


@pytest.mark.parametrize("statements", LOST.values(), ids=LOST.keys())
def test_what_mlflow_has_lost_is_sent_again(storage: Path, database: Path, statements: list[str]) -> None:
    ended(storage, database)
    (first,) = sync_folder(storage).records
    with sqlite3.connect(database) as opened:
        for statement in statements:
            opened.execute(statement)
    opened.close()
    (second,) = sync_folder(storage).records
    assert (second.state, second.run_id) == ("complete", first.run_id)
    assert second.sent > 0
    (run,) = runs(database)
    assert run.info.status == "FINISHED"
    assert steps(database, run) == [1, 2, 3, 4, 5]
    assert sync_folder(storage).records[0].sent == 0


def test_what_mlflow_never_takes_does_not_count_as_lost(storage: Path, database: Path) -> None:
    _, recorder = made(storage, f"sqlite:///{database}")
    now = int(time.time() * 1000)
    recorder.append([Point("bad\nkey?", 1.0, 1, now), Point("val/loss", float("inf"), 9, now)])
    recorder.append([Point("val/accuracy", float("nan"), 9, now)])
    recorder.conclude("FINISHED")
    recorder.abandon()
    assert sync_folder(storage).is_complete
    assert "bad" in runs(database)[0].data.tags[metrics.NOT_RECORDED]
    assert sync_folder(storage).records[0].sent == 0


def test_a_run_without_its_journal_is_left(storage: Path, database: Path) -> None:
    folder = ended(storage, database)
    (folder / "tracking" / "journal.jsonl").unlink()
    (found,) = sync_folder(storage).records
    assert found.state == "left"
    assert found.reason.startswith("its journal.jsonl is missing; put it back from a copy")
    assert not (folder / "tracking" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    "change", [{"params": None}, {"artifacts": 5}, {"parent": []}, {"uri": None}, {"tags": {"a": 1}}], ids=str
)
def test_one_damaged_record_stops_no_other(storage: Path, database: Path, change: dict[str, Any]) -> None:
    folder = ended(storage, database)
    other = storage / "mnist" / "20260101-000000-aaaaaa"
    shutil.copytree(folder, other)
    file = other / "tracking" / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **change}))
    states = {Path(each.folder).name: each for each in sync_folder(storage).records}
    assert states[RUN].state == "complete"
    assert states[other.name].state == "left"
    assert f"{file}: the field {next(iter(change))!r} cannot be" in states[other.name].reason


def test_a_field_that_is_missing_is_told_with_file_and_cure(storage: Path, database: Path) -> None:
    file = ended(storage, database) / "tracking" / "record.json"
    content = json.loads(file.read_bytes())
    del content["uri"]
    file.write_text(json.dumps(content))
    (found,) = sync_folder(storage).records
    assert found.reason == (
        f"its record cannot be read: {file}: the field 'uri' is missing; put the file back from a copy, or move "
        f"{file.parents[1]} away"
    )


# --- servers that let one in by halves ---------------------------------------------------------------------------

PAGE = b"<!doctype html><html><title>Sign in</title></html>"


@pytest.fixture
def gate() -> Iterator[Any]:
    """A server that says it is well, and answers all else as `gate.answer` says: code and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = (200, b"OK") if self.path.endswith("/health") else self.server.answer  # type: ignore[attr-defined]
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


ANSWERS = {
    401: (401, PAGE, "refuses the credentials (401)"),
    403: (403, b"", "refuses the credentials (403)"),
    200: (200, PAGE, "answers with a page instead of MLflow's data"),
}


@pytest.mark.parametrize(("code", "body", "reason"), ANSWERS.values(), ids=map(str, ANSWERS))
def test_a_server_that_lives_but_lets_nobody_in_is_told_with_the_cure(
    storage: Path, gate: Any, code: int, body: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.answer = code, body
    _, recorder = made(storage, f"http://127.0.0.1:{gate.server_address[1]}")
    recorder.conclude("FINISHED")
    recorder.abandon()
    assert run_command(["sync", str(storage)]) == 3
    told = capsys.readouterr().err
    assert reason in told
    assert "MLFLOW_TRACKING_USERNAME" in told


@pytest.mark.parametrize(("code", "body", "reason"), ANSWERS.values(), ids=map(str, ANSWERS))
def test_a_page_is_not_kept_for_a_cause(storage: Path, gate: Any, code: int, body: bytes, reason: str) -> None:
    gate.answer = code, body
    folder, recorder = made(storage, f"http://127.0.0.1:{gate.server_address[1]}")
    report = recorder.close("FINISHED", timeout_seconds=10.0)
    assert report.error is not None
    assert reason in report.error
    kept = (folder / "tracking" / "shipped.json").read_text()
    assert "MLFLOW_TRACKING_TOKEN" in kept
    assert "html" not in kept
