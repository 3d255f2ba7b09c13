"""Which checkpoints and data sets MLflow is to know of: of a run those that are kept, of a sweep the best trial's."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.cluster.desk import Desk, Status
from paceline.cluster.kept import kept_checkpoints
from paceline.engine.checkpoint import Snapshot, write_checkpoint
from paceline.engine.manifest import hash_file
from paceline.sweeps.desk.books import Books
from paceline.sweeps.desk.trial_desk import TrialDesk
from paceline.sweeps.trials import Trial
from paceline.tracking.journal import Journal
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder

NOWHERE = "http://127.0.0.1:9"
SETS = {"training": {"name": "x", "size": 9, "fingerprint": "abc"}, "validation": None}


def saved(folder: Path, *steps: int) -> Path:
    """A run's folder with checkpoints at these steps; returns that of the checkpoints."""
    for step in steps:
        tensors = {"model": {"weight": torch.full((3,), float(step))}}
        write_checkpoint(folder / "checkpoints", Snapshot(step, tensors, {"step": step}))
    return folder / "checkpoints"


def entries(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What a journal has of a kind."""
    return [dict(entry.content) for entry in Journal(folder / "journal.jsonl").read() if entry.kind == kind]


def test_each_kept_checkpoint_goes_with_its_hash_and_what_was_measured_at_its_step(tmp_path: Path) -> None:
    folder = saved(tmp_path, 4, 8)
    points = [
        Point("val/loss", 0.5, 4, 1004),
        Point("val/loss", 0.1, 6, 1006),
        Point("system/load", 9.0, 8, 1008),
        Point("train/loss", float("inf"), 8, 1008),
    ]
    newest, oldest = kept_checkpoints(folder, points)
    assert (newest.step, dict(newest.metrics)) == (8, {})
    assert (oldest.step, dict(oldest.metrics)) == (4, {"val/loss": (0.5, 1004)})
    assert oldest.uri == (folder / "step-4").as_uri()
    assert oldest.sha256 == hash_file(folder / "step-4" / "model.safetensors").sha256


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    folder = saved(tmp_path, 4, 8)
    (folder / "step-8" / "MANIFEST.json").write_text("{")
    (folder / "step-9").mkdir()
    assert [model.step for model in kept_checkpoints(folder, [])] == [4]
    assert kept_checkpoints(tmp_path / "none", []) == []


@pytest.mark.parametrize(
    ("kind", "status", "steps"),
    [(Desk, "FINISHED", [8, 4]), (Desk, "KILLED", []), (Desk, "FAILED", []), (TrialDesk, "FINISHED", [])],
)
def test_at_the_end_of_a_run_and_of_no_trial_what_is_kept_is_recorded(
    tmp_path: Path, kind: type[Desk], status: Status, steps: list[int]
) -> None:
    saved(tmp_path, 4, 8)
    shutil.rmtree(saved(tmp_path, 2) / "step-2")  # one that was removed meanwhile
    desk = kind(tmp_path / "tracking", RunRecord("r", "n", NOWHERE, "e"))
    desk.close(status, None, 0.1)
    assert [entry["step"] for entry in entries(tmp_path / "tracking", "model")] == steps


def test_data_sets_go_into_the_record_and_not_onto_the_screen(tmp_path: Path) -> None:
    desk = Desk(tmp_path, RunRecord("r", "n", NOWHERE, "e", {"data.name": "x", "data.shuffle": True}))
    desk.event("datasets", SETS)
    desk.event("datasets", SETS)
    assert desk.view(0).events == []
    assert entries(tmp_path, "datasets") == [{"sets": {"training": SETS["training"]}, "source": '{"name": "x"}'}]


def test_of_a_sweep_the_best_trials_final_checkpoint_is_recorded(tmp_path: Path) -> None:
    trials = [
        Trial("0000", {}, "finished", metrics={"val/loss": 0.5}),
        Trial("0001", {}, "finished", metrics={"val/loss": 0.2}),
        Trial("0002", {}, "pruned", metrics={"val/loss": 0.1}),
    ]
    for trial in trials:
        saved(tmp_path / "trials" / trial.id, 4, 8)
        record = RunRecord(f"{tmp_path.name}/{trial.id}", trial.id, NOWHERE, "e", parent=tmp_path.name)
        Recorder(tmp_path / "trials" / trial.id / "tracking", record).append([Point("val/loss", 0.2, 8, 1008)])

    async def close() -> None:
        books = Books(tmp_path, RunRecord(tmp_path.name, "sweep", NOWHERE, "e"), [("val/loss", "min")])
        for trial in trials:
            books.note(trial)
        await books.close("FINISHED", None, "the note", {}, 0.1)

    asyncio.run(close())
    (entry,) = entries(tmp_path / "tracking", "model")
    assert (entry["step"], entry["run_id"]) == (8, f"{tmp_path.name}/0001")
    assert entry["uri"] == (tmp_path / "trials" / "0001" / "checkpoints" / "step-8").as_uri()
    assert entry["metrics"] == {"val/loss": [0.2, 1008]}
