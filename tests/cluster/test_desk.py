"""What the desk keeps of a run's end, and which workers it knows."""

import errno
import os
from pathlib import Path

import pytest

from paceline.cluster.desk import OUTCOME, Desk, forget_outcome, read_outcome
from paceline.cluster.in_process import Feed
from paceline.cluster.listener import SilentListener
from paceline.storage.places import RunStore
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
from paceline.tracking.stored import MARK, is_hurried, note_stored

FINISHED = {"status": "finished", "step": 4}
FAILED = {"status": "failed", "failure": {"reason": "later"}}


def open_desk(folder: Path) -> Desk:
    return Desk(folder, RunRecord("r", "n", "http://127.0.0.1:9", "e"))


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written arrives in part only."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)


def test_the_first_word_stays_and_a_desk_that_is_started_again_finds_it(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    assert desk.outcome() is None
    desk.finish(FINISHED)
    desk.finish(FAILED)
    assert desk.outcome() == FINISHED
    again = open_desk(tmp_path)
    assert again.outcome() == FINISHED
    assert again.view(0).ended
    again.finish(FAILED)
    assert read_outcome(tmp_path) == FINISHED


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "fini',
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"status": 5}',
        '{"status": "finished", "step": "x"}',
        '{"status": "finished", "step": 1e400}',
        '{"status": "finished", "peak_memory_bytes": [1]}',
        '{"status": "finished", "samples_per_second": "x"}',
        '{"status": "finished", "metrics": {"val/loss": "x"}}',
        '{"status": "failed", "failure": 5}',
        '{"status": "failed", "failure": {"reason": 5}}',
    ],
)
def test_half_an_outcome_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / OUTCOME).write_text(text)
    desk = open_desk(tmp_path)
    assert desk.outcome() is None
    desk.finish(FINISHED)
    assert open_desk(tmp_path).outcome() == FINISHED


def test_a_full_disk_loses_no_outcome_and_leaves_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(tmp_path)
    fill_the_disk(monkeypatch)
    desk.finish(FINISHED)
    assert desk.outcome() == FINISHED
    assert desk.view(0).ended
    assert not (tmp_path / OUTCOME).exists()
    assert "No space left" in str(desk.view(0).events)


def test_the_next_launch_of_a_run_starts_without_the_last_ones_outcome(tmp_path: Path) -> None:
    open_desk(tmp_path).finish(FINISHED)
    forget_outcome(tmp_path)
    forget_outcome(tmp_path)
    assert open_desk(tmp_path).outcome() is None


def test_a_full_disk_at_the_end_does_not_lose_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(tmp_path)
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)
    monkeypatch.setattr("paceline.tracking.shipping.Shipper.finish", lambda self, timeout_seconds: self.report())
    fill_the_disk(monkeypatch)
    report = desk.close("FINISHED", None, 1.0)
    assert "No space left" in report["error"]


def test_workers_are_let_in_until_the_run_has_ended_or_the_launch_is_over(tmp_path: Path) -> None:
    ended, dismissed = open_desk(tmp_path / "ended"), open_desk(tmp_path / "dismissed")
    assert ended.enter(b"a worker")
    ended.finish(FINISHED)
    assert not ended.enter(b"its successor")
    assert dismissed.enter(b"a worker")
    assert dismissed.may_commit()
    assert not dismissed.progress(1, 1.0)
    workers = dismissed.dismiss()
    assert workers == [b"a worker"]
    assert not dismissed.enter(b"its successor")
    assert not dismissed.may_commit()
    assert dismissed.progress(2, 1.0), "it is asked to stop"


FOUND = {"micro_batch_size": 24, "gradient_accumulation_steps": 2, "text": "24 micro x 2 accumulation"}


class Planned(SilentListener):
    """Keeps the lines of the plan."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def planned(self, lines: list[tuple[str, str]]) -> None:
        self.lines += lines


def test_found_batch_sizes_reach_the_user_and_the_runs_tags(tmp_path: Path) -> None:
    desk, listener = open_desk(tmp_path), Planned()
    desk.event("batch", FOUND)
    Feed(listener, None).show(desk.view)
    assert listener.lines == [("batch", "24 micro x 2 accumulation")]
    journal = (tmp_path / "journal.jsonl").read_text()
    assert '"paceline.micro_batch_size":"24"' in journal
    assert '"paceline.gradient_accumulation_steps":"2"' in journal


def test_a_full_disk_does_not_keep_found_batch_sizes_from_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(tmp_path)
    fill_the_disk(monkeypatch)
    desk.event("batch", FOUND)
    assert [kind for kind, _ in desk.view(0).events] == ["batch", "warning"]


def test_a_record_is_secure_once_its_store_has_it(tmp_path: Path) -> None:
    record = RunRecord("r", "n", "http://127.0.0.1:9", "e")
    assert open_desk(tmp_path / "folder").secure()[1]
    folder = tmp_path / "stored"
    note_stored(folder, 0)
    desk = Desk(folder, record, store=RunStore("s3://bucket/runs", "n", "r"))
    desk.tag({"first": "now"})
    end, is_there = desk.secure()
    assert not is_there
    assert is_hurried(folder)
    desk.tag({"more": "later"})
    note_stored(folder, end)
    assert desk.secure(end) == (end, True)
    assert desk.secure()[1] is False
    (folder / MARK).unlink()  # with the working copy, by somebody who takes the run for dead
    assert desk.secure(end) == (end, False)
    desk.abandon()
