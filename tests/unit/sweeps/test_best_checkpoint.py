"""Of a sweep, MLflow is told of the final checkpoint of the best trial alone."""

import asyncio
from pathlib import Path

import torch

from paceline.engine.checkpoint import Snapshot, write_checkpoint
from paceline.sweeps.desk.books import Books
from paceline.sweeps.trials import Trial
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
from support.cluster.desks import NOWHERE, entries_of


def test_the_final_checkpoint_of_the_best_trial_is_recorded(tmp_path: Path) -> None:
    trials = [
        Trial("0000", {}, "finished", metrics={"val/loss": 0.5}),
        Trial("0001", {}, "finished", metrics={"val/loss": 0.2}),
        Trial("0002", {}, "pruned", metrics={"val/loss": 0.1}),
    ]
    for trial in trials:
        folder = tmp_path / "trials" / trial.id
        for step in (4, 8):
            snapshot = Snapshot(step, {"model": {"weight": torch.full((3,), float(step))}}, {"step": step})
            write_checkpoint(folder / "checkpoints", snapshot)
        record = RunRecord(f"{tmp_path.name}/{trial.id}", trial.id, NOWHERE, "e", parent=tmp_path.name)
        Recorder(folder / "tracking", record).append([Point("val/loss", 0.2, 8, 1008)])

    async def close() -> None:
        books = Books(tmp_path, RunRecord(tmp_path.name, "sweep", NOWHERE, "e"), [("val/loss", "min")])
        for trial in trials:
            books.note(trial)
        await books.close("FINISHED", None, "the note", {}, 0.1)

    asyncio.run(close())
    (entry,) = entries_of(tmp_path / "tracking", "model")
    assert (entry["step"], entry["run_id"]) == (8, f"{tmp_path.name}/0001")
    assert entry["uri"] == (tmp_path / "trials" / "0001" / "checkpoints" / "step-8").as_uri()
    assert entry["metrics"] == {"val/loss": [0.2, 1008]}
