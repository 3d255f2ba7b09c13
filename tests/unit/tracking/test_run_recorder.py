"""The recorder's folder, without MLflow: each point once, whatever was written before, and nothing outside it."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import metrics
from paceline.tracking import run_recorder as module
from paceline.tracking.datasets_and_models import LOADING
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder, has_ended
from paceline.tracking.upload_cursor import CURSOR_FILE, MARK, UploadCursor, note_stored, unsent
from support.cluster.coordinators import no_space
from support.tracking.recording import DEAD, MakeRecord, as_stored, points


def test_a_replayed_step_is_dropped_and_the_first_value_wins(tmp_path: Path, record: MakeRecord) -> None:
    first = RunRecorder(tmp_path, record(DEAD))
    assert first.append(points(1, 6)) == 5
    assert first.append(points(4, 8, since=9_000)) == 2
    again = RunRecorder(tmp_path, record(DEAD))  # as after a crash: the first one was never closed
    assert again.append(points(2, 9, since=20_000)) == 1
    assert again.append(points(1, 3, key="lr")) == 2
    times = [(point.step, point.timestamp_ms) for point in again.history() if point.key == "train/loss"]
    assert times == [(1, 1001), (2, 1002), (3, 1003), (4, 1004), (5, 1005), (6, 9006), (7, 9007), (8, 20008)]


def test_two_recorders_of_one_run_double_nothing(tmp_path: Path, record: MakeRecord) -> None:
    """The driver was killed, and the same command goes on, while the actor of the first one still takes messages."""
    old = RunRecorder(tmp_path, record(DEAD))
    old.append(points(1, 4))
    new = RunRecorder(tmp_path, record(DEAD))
    assert old.append(points(4, 8)) == 4
    assert new.append(points(1, 11, since=9_000)) == 3
    assert old.append(points(8, 10, since=20_000)) == 0
    assert as_stored(new.history()) == as_stored([*points(1, 8), *points(8, 11, since=9_000)])
    numbers = [json.loads(line)["n"] for line in (tmp_path / JOURNAL_FILE).read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_reason_of_an_earlier_end_goes_with_the_last_one(tmp_path: Path, record: MakeRecord) -> None:
    """Stopped by Ctrl-C, resumed and killed, resumed to the end."""
    RunRecorder(tmp_path, record(DEAD)).conclude("KILLED", "stopped by the user")
    RunRecorder(tmp_path, record(DEAD))
    RunRecorder(tmp_path, record(DEAD)).conclude("FINISHED")
    tags: dict[str, str] = {}
    for entry in Journal(tmp_path / JOURNAL_FILE).read():
        tags.update(entry.content.get("tags", {}))
    assert tags[metrics.STATUS_REASON] == ""


def test_a_batch_that_could_not_be_written_may_be_given_again(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RunRecorder(tmp_path, record(DEAD))
    recorder.append(points(1, 3))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError) as caught:  # noqa: PT011
            recorder.append(points(3, 5))
    assert caught.value.errno == errno.ENOSPC
    assert recorder.append(points(3, 5)) == 2
    assert [point.step for point in recorder.history()] == [1, 2, 3, 4]


def test_the_key_of_a_metric_is_text_that_a_database_takes(tmp_path: Path, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path, record(DEAD))
    recorder.append([replace(points(1, 2)[0], key="a\udce9")])
    assert [point.key for point in recorder.history()] == ["a\\udce9"]


def test_the_end_is_written_down_before_the_picture_is_drawn(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RunRecorder(tmp_path, record(DEAD))
    recorder.append(points(1, 3))
    known: list[bool] = []
    monkeypatch.setattr(module, "loss_curve", lambda *given: known.append(has_ended(tmp_path)))
    assert not has_ended(tmp_path)
    recorder.conclude("FINISHED")
    assert known == [True]


def test_a_resumed_run_has_its_changed_params_in_its_own_record(tmp_path: Path) -> None:
    for epochs in (6, 12, 12):
        record = RunRecord("r1", "n", DEAD, "e", {"trainer.epochs": epochs, "seed": 0}, picture=False)
        recorder = RunRecorder(tmp_path, record)
        recorder.conclude("KILLED")
        recorder.abandon()
    entries = Journal(tmp_path / JOURNAL_FILE).read()
    told = [entry.content["tags"] for entry in entries if entry.kind == "tags"]
    changed = [tags[metrics.CHANGED_PARAMS] for tags in told if metrics.CHANGED_PARAMS in tags]
    assert changed == ["trainer.epochs: 6 -> 12"]


def test_an_artifact_that_the_journal_did_not_take_is_added_by_the_next_call(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RunRecorder(tmp_path, record(DEAD))
    recorder.add_artifact("report.md", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", no_space)
        with pytest.raises(OSError, match="No space left"):
            recorder.add_artifact("report.md", b"new")
    recorder.add_artifact("report.md", b"new")
    entries = [entry for entry in Journal(tmp_path / JOURNAL_FILE).scan() if entry.kind == "artifact"]
    assert len(entries) == 2


def test_an_unchanged_artifact_is_not_sent_again(tmp_path: Path, record: MakeRecord) -> None:
    recorder = RunRecorder(tmp_path, record(DEAD, artifacts={"config.yaml": "a"}))
    recorder.add_artifact("config.yaml", b"a")
    assert recorder.report().unsent == 1
    recorder.add_artifact("config.yaml", b"b")
    assert recorder.report().unsent == unsent(tmp_path) == 2


@pytest.mark.parametrize("path", ["/etc/passwd", "../out.txt", "a/../../b", ""])
def test_an_artifact_stays_in_its_folder(tmp_path: Path, record: MakeRecord, path: str) -> None:
    recorder = RunRecorder(tmp_path / "run", record(DEAD))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"."):
        recorder.add_artifact(path, b"")
    assert sorted(tmp_path.rglob("*")) == before


def test_keys_of_how_data_are_loaded_are_keys_of_every_data_section() -> None:
    from paceline.data.base import DataConfig

    assert set(LOADING) == set(DataConfig.model_fields)


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
    {"diverged": "x"},
    {"error": None},
    {"colour": "blue"},
]


@pytest.mark.parametrize("change", CURSORS, ids=str)
def test_a_damaged_cursor_is_not_believed(tmp_path: Path, change: dict[str, Any]) -> None:
    journal = Journal(tmp_path / JOURNAL_FILE)
    journal.append([("point", point.to_json()) for point in points(1, 6)])
    whole = {"run_id": "abc", "experiment_id": "1", "offset": journal.size, "sequence": 5}
    UploadCursor(**whole).save(tmp_path / CURSOR_FILE)  # type: ignore[arg-type]
    file = tmp_path / CURSOR_FILE
    assert UploadCursor.load(file).fits(journal)
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **change}))
    found = UploadCursor.load(file)
    assert found == UploadCursor() or not found.fits(journal)


@pytest.mark.parametrize("content", ["", "{broken", "[1]", "[" * 100_000])
def test_a_file_that_is_no_cursor_means_starting_over(tmp_path: Path, content: str) -> None:
    (tmp_path / CURSOR_FILE).write_text(content)
    assert UploadCursor.load(tmp_path / CURSOR_FILE) == UploadCursor()


def test_a_stored_run_whose_working_copy_was_removed_sends_nothing(
    tmp_path: Path, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []  # by folder: the thread of an earlier test may still try to reach its MLflow
    monkeypatch.setattr(MlflowUploader, "_open", lambda uploader: opened.append(uploader._folder))
    note_stored(tmp_path, 0)
    recorder = RunRecorder(tmp_path, record(DEAD))
    recorder.append(points(1, 2))
    (tmp_path / MARK).unlink()
    recorder.start_uploading()
    assert recorder.close("KILLED", None, 10.0).unsent
    assert tmp_path not in opened
