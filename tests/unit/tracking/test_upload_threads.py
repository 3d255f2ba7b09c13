"""Records of many runs that threads of one process send to MLflow."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import upload_threads
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor, UploadReport
from paceline.tracking.upload_threads import UploadThreads
from support.tracking.recording import DEAD, MakeRecord, points, until

SILENT = f"{DEAD}/silent"
"""An address of no other test, whose threads may still be at work."""


@pytest.fixture
def uploads() -> Iterator[UploadThreads]:
    threads = UploadThreads()
    yield threads
    threads.stop()


@pytest.fixture
def folder(tmp_path: Path, record: MakeRecord) -> Callable[[str], Path]:
    """Makes the folder of a record whose run has ended."""

    def make(name: str) -> Path:
        recorder = RunRecorder(tmp_path / name, record(DEAD, run_id=name, picture=False))
        recorder.append(points(1, 3))
        recorder.hand_over("FINISHED")
        return tmp_path / name

    return make


def upload_threads_alive() -> set[threading.Thread]:
    """Those of other tests may be among them."""
    return {each for each in threading.enumerate() if each.name == "paceline-upload"}


def refuse(uploader: MlflowUploader) -> Any:
    raise ConnectionError("MLflow does not answer")


@pytest.mark.parametrize(("seconds", "times"), [(60.0, 1), (0.0, 10)], ids=["soon", "later"])
def test_silent_mlflow_is_asked_once_in_a_while(
    uploads: UploadThreads,
    folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    times: int,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(MlflowUploader, "_open", refuse)
    monkeypatch.setattr(upload_threads, "SILENT_SECONDS", seconds)
    monkeypatch.setattr(upload_threads, "silence_of", lambda uri, _: (asked.append(uri), "nobody is there")[1])
    reports: list[UploadReport] = []
    for number in range(10):
        uploads.finish(folder(str(number)), SILENT, 60.0, reports.append)
        until(lambda number=number: len(reports) > number)  # type: ignore[misc]
    assert all(report.error and report.unsent for report in reports)
    assert asked.count(SILENT) == times


def test_mlflow_that_has_answered_once_is_waited_for(
    uploads: UploadThreads, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MlflowUploader, "_open", refuse)
    monkeypatch.setattr(upload_threads, "silence_of", lambda *_: pytest.fail("it is known to be there"))
    place = folder("known")
    UploadCursor(run_id="abc", experiment_id="1").save(place / CURSOR_FILE)
    reports: list[UploadReport] = []
    uploads.finish(place, DEAD, 0.3, reports.append)
    until(lambda: reports)
    assert "does not answer" in str(reports[0].error)


@pytest.mark.parametrize("is_begun", [True, False])
def test_abandoned_record_is_not_reported_and_leaves_no_thread(
    uploads: UploadThreads, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    is_opening, may_open = threading.Event(), threading.Event()

    def open_slowly(uploader: MlflowUploader) -> Any:
        is_opening.set()
        assert may_open.wait(60)
        refuse(uploader)

    monkeypatch.setattr(MlflowUploader, "_open", open_slowly)
    monkeypatch.setattr(upload_threads, "silence_of", lambda *_: None)
    place, reports, before = folder("abandoned"), list[UploadReport](), upload_threads_alive()
    if is_begun:
        uploads.begin(place, DEAD)
    uploads.finish(place, DEAD, 60.0, reports.append)
    assert is_opening.wait(60)
    uploads.abandon(place)
    may_open.set()
    until(lambda: upload_threads_alive() <= before)
    assert reports == []
    uploads.finish(place, DEAD, 0.1, reports.append)  # it can be taken up again
    until(lambda: reports)


def test_record_that_is_awaited_does_not_wait_for_its_turn(
    uploads: UploadThreads, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a sweep, while those of its trials wait: it keeps the uploader that it has."""
    may_end, told = threading.Event(), UploadReport("http://page", "1", "run", 0, None)
    finished: list[MlflowUploader] = []

    def finish(uploader: MlflowUploader, seconds: float) -> UploadReport:
        assert uploader._folder.name == "sweep" or may_end.wait(60)
        finished.append(uploader)
        return told

    monkeypatch.setattr(MlflowUploader, "_open", refuse)
    monkeypatch.setattr(MlflowUploader, "finish_patiently", finish)
    monkeypatch.setattr(upload_threads, "silence_of", lambda *_: None)
    sweep, reports = folder("sweep"), list[UploadReport]()
    uploads.begin(sweep, DEAD)
    begun = uploads._uploaders[sweep]
    trials = [folder(f"trial-{number}") for number in range(2 * upload_threads.MOST_FINISHING)]
    for trial in trials:
        uploads.finish(trial, DEAD, 60.0, reports.append)
    uploads.finish(sweep, DEAD, 60.0, reports.append, is_awaited=True)
    until(lambda: reports)
    assert [each for each in finished if each._folder.parent == sweep.parent] == [begun]
    may_end.set()
    until(lambda: len(reports) == len(trials) + 1)


def test_nothing_begins_after_the_end(folder: Callable[[str], Path]) -> None:
    uploads, reports, before = UploadThreads(), list[UploadReport](), upload_threads_alive()
    place = folder("late")
    uploads.stop()
    uploads.begin(place, DEAD)
    uploads.finish(place, DEAD, 60.0, reports.append)
    assert upload_threads_alive() <= before
    assert reports == []


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_record_that_cannot_be_read_at_first_is_begun_later(
    uploads: UploadThreads,
    folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_abandoned: bool,
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(upload_threads, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(MlflowUploader, "_open", lambda uploader: opened.append(uploader._folder) or refuse(uploader))
    uploads.begin(tmp_path / "late", DEAD)
    uploads.begin(tmp_path / "late", DEAD)
    if is_abandoned:
        uploads.abandon(tmp_path / "late")
    place = folder("late")
    until(lambda: uploads._lacking == set())
    if is_abandoned:
        time.sleep(0.2)
        assert not uploads._uploaders
    else:
        until(lambda: place in opened)


@pytest.mark.parametrize("was_tried", [False, True])
def test_record_that_waits_for_its_turn_is_looked_for_only_if_it_may_be_in_mlflow(
    uploads: UploadThreads, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, was_tried: bool
) -> None:
    """Looking for it reads all runs of the experiment: too much for each of thousands of trials."""
    may_end, believed_new = threading.Event(), dict[str, bool]()

    def finish(uploader: MlflowUploader, seconds: float) -> UploadReport:
        assert may_end.wait(60)
        believed_new[uploader._folder.name] = uploader.is_new
        return UploadReport("http://page", "1", "run", 0, None)

    monkeypatch.setattr(MlflowUploader, "start", lambda uploader: None)
    monkeypatch.setattr(MlflowUploader, "finish_patiently", finish)
    monkeypatch.setattr(upload_threads, "silence_of", lambda *_: None)
    reports: list[UploadReport] = []
    waiting = [folder(f"before-{number}") for number in range(upload_threads.MOST_FINISHING)]
    last = folder("last")
    uploads.begin(last, DEAD, is_new=True)
    uploads._uploaders[last].is_new = not was_tried
    for each in [*waiting, last]:
        uploads.finish(each, DEAD, 60.0, reports.append, is_new=True)
    assert last not in uploads._uploaders
    may_end.set()
    until(lambda: len(reports) == len(waiting) + 1)
    assert believed_new["last"] is not was_tried
