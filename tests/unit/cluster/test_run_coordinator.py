"""What the coordinator keeps of a run: its end, its workers, and what belongs to its record rather than to the
screen."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.final_report import forget_outcome, read_outcome
from paceline.cluster.kept_checkpoints import kept_checkpoints
from paceline.cluster.listener import ProgressFeed
from paceline.cluster.run_coordinator import RunCoordinator, Status
from paceline.engine.manifest import hash_file
from paceline.storage.address import OUTCOME, RunStore
from paceline.sweeps.coordinator.running_trial import TrialCoordinator
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import MARK, is_hurried, note_stored
from support.cluster.coordinators import NOWHERE, Events, entries_of, no_space, open_coordinator, tags_of, warnings_of
from support.cluster.local_runs import save_checkpoint

FINISHED = {"status": "finished", "step": 4}
FAILED = {"status": "failed", "failure": {"reason": "later"}}

# The outcome


def test_the_first_outcome_stays_and_a_coordinator_that_is_started_again_finds_it(tmp_path: Path) -> None:
    coordinator = open_coordinator(tmp_path)
    assert coordinator.outcome() is None
    coordinator.finish(FINISHED)
    coordinator.finish(FAILED)
    assert coordinator.outcome() == FINISHED
    again = open_coordinator(tmp_path)
    assert again.outcome() == FINISHED
    assert again.view().ended
    again.finish(FAILED)
    assert read_outcome(tmp_path) == FINISHED
    for _ in range(2):  # the next launch of the run begins without one
        forget_outcome(tmp_path)
    assert open_coordinator(tmp_path).outcome() is None


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "fini',
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"status": "finished", "step": 1e400}',
        '{"status": "finished", "metrics": {"val/loss": "x"}}',
        '{"status": "failed", "failure": {"reason": 5}}',
    ],
)
def test_a_damaged_outcome_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / OUTCOME).write_text(text)
    coordinator = open_coordinator(tmp_path)
    assert coordinator.outcome() is None
    coordinator.finish(FINISHED)
    assert open_coordinator(tmp_path).outcome() == FINISHED


def test_a_full_disk_loses_no_outcome_and_leaves_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = open_coordinator(tmp_path)
    monkeypatch.setattr(os, "fsync", no_space)  # what is written arrives in part only
    coordinator.finish(FINISHED)
    assert coordinator.outcome() == FINISHED
    assert coordinator.view().ended
    assert not (tmp_path / OUTCOME).exists()
    assert warnings_of(coordinator) == ["not-written"]
    assert "No space left" in coordinator.close("FINISHED", None, 1.0)["error"]


# Workers


def test_workers_are_let_in_until_the_run_has_ended_or_the_launch_is_over(tmp_path: Path) -> None:
    ended, dismissed = open_coordinator(tmp_path / "ended"), open_coordinator(tmp_path / "dismissed")
    assert ended.enter(b"a worker")
    ended.finish(FINISHED)
    assert not ended.enter(b"its successor")
    assert dismissed.enter(b"a worker")
    assert dismissed.may_commit()
    assert not dismissed.progress(1, 1.0)
    assert dismissed.dismiss() == [b"a worker"]
    assert not dismissed.enter(b"its successor")
    assert not dismissed.may_commit()
    assert dismissed.progress(2, 1.0), "it is asked to stop"


# The record


FOUND = {"micro_batch_size": 24, "gradient_accumulation_steps": 2, "text": "24 micro x 2 accumulation"}
STOPPED = {"text": "stopped early after 4 of 12 steps by mine.Limit"}
WEIGHTS = {"weights": "base/1", "path": "runs/base/1/checkpoints/step-8", "sha256": "abc"}
STAMPS = [{"device": "cpu", "measured_steps": steps, "gpu_mhz": None} for steps in (0, 40)]
STRAGGLERS = [{"rank": rank, "text": f"rank {rank} is slow"} for rank in (3, 1)]


@pytest.mark.parametrize(
    ("kind", "events", "tags", "is_shown"),
    [
        ("batch", [FOUND], {"paceline.micro_batch_size": "24", "paceline.gradient_accumulation_steps": "2"}, True),
        ("stopped_early", [STOPPED], {metrics.STOPPED_EARLY: STOPPED["text"]}, True),
        ("initial_weights", [WEIGHTS], {metrics.INITIAL_WEIGHTS: "base/1"}, True),
        ("stamp", STAMPS, {metrics.SPEED_STAMP: json.dumps(STAMPS[1])}, False),
        ("straggler", STRAGGLERS, {metrics.STRAGGLER: "rank 3 is slow\nrank 1 is slow"}, False),  # a warning is shown
        ("preemption", [{}, {}], {metrics.PREEMPTIONS: "2"}, False),
        ("ranks", [{"text": text} for text in "aab"], {metrics.RANKS: "a\nb"}, False),
    ],
)
def test_events_are_tags_of_the_run_and_some_are_shown(
    tmp_path: Path, kind: str, events: list[dict[str, Any]], tags: dict[str, str], is_shown: bool
) -> None:
    coordinator = open_coordinator(tmp_path)
    for details in events:
        coordinator.event(kind, details)
    assert tags.items() <= tags_of(tmp_path).items()
    assert coordinator.view().events == [(kind, details) for details in events] * is_shown
    assert coordinator.close("FINISHED", None, 0.1)["straggler"] == tags.get(metrics.STRAGGLER, "")


def test_found_batch_sizes_are_shown_though_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, listener = open_coordinator(tmp_path), Events()
    coordinator.event("batch", FOUND)
    monkeypatch.setattr(os, "fsync", no_space)
    coordinator.event("batch", FOUND)
    ProgressFeed(listener, None).show(coordinator.view)
    assert listener.lines == [("batch", FOUND["text"])] * 2
    assert listener.warnings == ["not-written"]


def test_events_of_a_coordinator_that_is_started_again_are_shown(tmp_path: Path) -> None:
    listener, first = Events(), open_coordinator(tmp_path)
    feed = ProgressFeed(listener, None)
    for number in range(3):
        first.event("warning", {"code": f"first-{number}", "message": ""})
    feed.show(first.view)
    again = open_coordinator(tmp_path)
    again.event("warning", {"code": "again", "message": ""})
    feed.show(again.view)
    feed.show(again.view)
    assert listener.warnings == ["first-0", "first-1", "first-2", "again"]


def test_data_sets_go_into_the_record_and_not_onto_the_screen(tmp_path: Path) -> None:
    training = {"name": "x", "size": 9, "fingerprint": "abc"}
    coordinator = open_coordinator(tmp_path, params={"data.name": "x", "data.shuffle": True})
    for _ in range(2):
        coordinator.event("datasets", {"training": training, "validation": None})
    assert coordinator.view().events == []
    assert entries_of(tmp_path, "datasets") == [{"sets": {"training": training}, "source": '{"name": "x"}'}]


def test_a_record_is_secure_once_its_store_has_it(tmp_path: Path) -> None:
    assert open_coordinator(tmp_path / "folder").secure()[1]
    folder = tmp_path / "stored"
    note_stored(folder, 0)
    coordinator = RunCoordinator(
        folder, RunRecord("r", "n", NOWHERE, "e"), store=RunStore("s3://bucket/runs", "n", "r")
    )
    coordinator.tag({"first": "now"})
    end, is_there = coordinator.secure()
    assert not is_there
    assert is_hurried(folder)
    coordinator.tag({"more": "later"})
    note_stored(folder, end)
    assert coordinator.secure(end) == (end, True)
    assert coordinator.secure()[1] is False
    (folder / MARK).unlink()  # with the working copy, by somebody who takes the run for dead
    assert coordinator.secure(end) == (end, False)
    coordinator.abandon()


# Checkpoints that MLflow is told of


def saved(folder: Path, *steps: int) -> Path:
    """The folder of a run's checkpoints, with some at these steps."""
    for step in steps:
        save_checkpoint(folder / "checkpoints", step)
    return folder / "checkpoints"


def test_each_kept_checkpoint_has_its_hash_and_the_metrics_of_its_step(tmp_path: Path) -> None:
    folder = saved(tmp_path, 4, 8)
    points = [
        MetricPoint("val/loss", 0.5, 4, 1004),
        MetricPoint("val/loss", 0.1, 6, 1006),
        MetricPoint("system/load", 9.0, 8, 1008),
        MetricPoint("train/loss", float("inf"), 8, 1008),
    ]
    newest, oldest = kept_checkpoints(folder, points)
    assert (newest.step, dict(newest.metrics)) == (8, {})
    assert (oldest.step, dict(oldest.metrics)) == (4, {"val/loss": (0.5, 1004)})
    assert oldest.uri == (folder / "step-4").as_uri()
    assert oldest.sha256 == hash_file(folder / "step-4" / "model.safetensors").sha256
    (folder / "step-8" / "MANIFEST.json").write_text("{")
    (folder / "step-9").mkdir()
    assert [model.step for model in kept_checkpoints(folder, [])] == [4]
    assert kept_checkpoints(tmp_path / "none", []) == []


@pytest.mark.parametrize(
    ("kind", "status", "steps"),
    [
        (RunCoordinator, "FINISHED", [8, 4]),
        (RunCoordinator, "KILLED", []),
        (RunCoordinator, "FAILED", []),
        (TrialCoordinator, "FINISHED", []),
    ],
)
def test_checkpoints_are_recorded_at_the_end_of_a_finished_run_and_of_no_trial(
    tmp_path: Path, kind: type[RunCoordinator], status: Status, steps: list[int]
) -> None:
    saved(tmp_path, 4, 8)
    shutil.rmtree(saved(tmp_path, 2) / "step-2")  # one that was removed meanwhile
    open_coordinator(tmp_path / "tracking", kind).close(status, None, 0.1)
    assert [entry["step"] for entry in entries_of(tmp_path / "tracking", "model")] == steps
