"""`paceline scale` as a user calls it: its output, its files, its run in MLflow, and what a kill leaves of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import list_runs, load_config
from paceline.batch_scaling.pictures import PICTURES
from support.batch_scaling.short_windows import measure_speeds_for_less_long
from support.cli.command import run_in_process
from support.reports.page import page_from
from support.runs.command_process import CommandProcess

CODE = """
import torch
from torch.utils.data import TensorDataset


def blobs(samples, seed):
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(4, (samples,), generator=draw)
    centres = torch.nn.functional.one_hot(targets, 8).float()
    return TensorDataset(centres + 0.45 * torch.randn(samples, 8, generator=draw), targets)


def build():
    return blobs(2048, 0), blobs(512, 1)
"""
CONFIG = """
name: blobs
model: {name: mlp, in_features: 8, num_classes: 4, hidden: [16]}
data: {path: "blobs:build", global_batch_size: 8}
optimizer: {name: sgd, lr: 0.02, momentum: 0.9}
trainer: {epochs: 3}
scaling: {num_workers: 0}
scale: {target: {val/loss: 0.37}, budget_seconds: 600, seeds: 2, workers: [1, 64]}
"""
COMMAND = ("scale", "blobs.yaml", "--json")


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(prepared_database, tmp_path)
    (tmp_path / "blobs.py").write_text(CODE)
    (tmp_path / "blobs.yaml").write_text(CONFIG)
    return tmp_path


def check_findings(found: dict[str, Any]) -> None:
    assert found["target"] == {"val/loss": 0.37}
    assert found["critical_batch_size"] is None or found["critical_batch_size"] > 0
    assert found["noise_scale"] > 0
    sizes = {branch["batch_size"] for branch in found["branches"]}
    assert len(sizes) == 2  # the second one follows from the first
    assert 32 in sizes
    assert found["samples_spent"] > found["samples_to_target"] > 0
    assert {row["global_batch_size"] for row in found["table"]} >= {8, 16, 32}
    assert all(row["is_extrapolated"] for row in found["table"] if row["workers"] != 1)
    recommended = load_config(found["recommended_path"])
    size = found["recommended"].get("data.global_batch_size", 8)
    assert recommended.data.global_batch_size == size
    assert recommended.scale is None
    page = page_from(Path(found["report_path"]).read_text())
    assert len(page.one(id="sizes").all("tr", data_batch_size=None)) == len(found["table"])
    assert len(page.classes("chart")) == 3
    if found["recommended"]:
        assert found["speedup"] > 1
        assert found["measured_seconds"] < found["own_seconds"]


def check_mlflow(home: Path, found: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (run.info.status, run.data.tags["paceline.kind"]) == ("FINISHED", "scale")
    assert run.data.metrics["scale/samples_spent"] == found["samples_spent"]
    assert run.data.tags["mlflow.note.content"].startswith("## blobs, scaled")
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"recommended.yaml", "findings.json", "config.yaml", "report.html", *PICTURES} <= files


def answered(home: Path) -> list[str]:
    """The lines of its journal that hold an answer."""
    journals = list((home / "runs" / "blobs").glob("*/jobs.jsonl"))
    assert len(journals) <= 1
    return [line for journal in journals for line in journal.read_text().splitlines() if '"kind":"done"' in line]


@pytest.mark.timeout(600)
def test_a_study_that_was_killed_is_resumed_and_answers(home: Path) -> None:
    command = CommandProcess(home, {})
    try:
        command.give(*COMMAND, prepare=measure_speeds_for_less_long)
        command.until(lambda: len(answered(home)) >= 4)
        command.kill()
        before = answered(home)
        command.give(*COMMAND, prepare=measure_speeds_for_less_long)
        found = command.result()
    finally:
        command.leave()
    after = answered(home)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    check_findings(found)
    check_mlflow(home, found)
    (folder,) = (each.parent for each in (home / "runs" / "blobs").glob("*/scale.json"))
    assert folder.name == found["scale_id"]
    (listed,) = list_runs("blobs", home / "runs")
    assert (listed.status, listed.summary) == ("finished", found["summary"])
    assert not (folder / "checkpoints").exists()
    # nothing is left to resume
    assert run_in_process(home, *COMMAND, "--resume").code == 2


def remove(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def damage(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("harm", [remove, damage])
def test_a_study_says_so_where_a_checkpoint_is_not_as_it_was(home: Path, harm: Callable[[Path], None]) -> None:
    longer = (*COMMAND, "trainer.epochs=8", "scale.target=null", "optimizer.lr=0.001")
    command = CommandProcess(home, {})
    try:
        command.give(*longer, "--no-verify")
        command.until(lambda: len(answered(home)) >= 2)
        command.kill()
    finally:
        command.leave()
    checkpoints = sorted(home.glob("runs/blobs/*/checkpoints/own/step-*"))
    assert checkpoints
    for checkpoint in checkpoints:
        harm(checkpoint)
    verified = run_in_process(home, *longer)
    assert verified.code == 2
    assert "scale.verify" in verified.err
    for _ in range(2):
        ended = run_in_process(home, *longer, "--no-verify")
        assert ended.code == 3, ended.err
        assert "[checkpoint-damaged]" in ended.err


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_steps_of_two_workers_are_measured_too(home: Path) -> None:
    command = CommandProcess(home, {}, forks=False)
    try:
        command.give(*COMMAND, "--no-verify", "scale.workers=[1, 2, 64]", "scaling.cpus_per_worker=0.5")
        found = command.result()
    finally:
        command.leave()
    assert found["other_workers"] == [2]
    assert found["other_workers_error"] >= 0
    measured = {row["workers"] for row in found["table"] if not row["is_extrapolated"]}
    assert measured == {1, 2}
    assert found["step_time"]["has_exchange"]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("val/loss=1e-9", "target-not-reached"),
        ("val/loss=9", "target-at-once"),
        ("nonsense=1", "target-unknown"),
    ],
)
def test_a_bad_target_is_answered_in_words(home: Path, target: str, code: str) -> None:
    ended = run_in_process(home, "scale", "blobs.yaml", "--target", target, "trainer.epochs=1")
    assert ended.code == 1, ended.err
    assert f"[{code}]" in ended.err


@pytest.mark.parametrize("target", ["val/loss", "=1", "val/loss=low", "val/loss=nan", "val/nonsense=1"])
def test_a_target_that_is_none_is_refused(home: Path, target: str) -> None:
    assert run_in_process(home, "scale", "blobs.yaml", "--target", target).code == 2
    assert not (home / "runs").exists()


def test_what_is_wrong_with_an_option_is_placed_there(home: Path) -> None:
    ended = run_in_process(home, "scale", "blobs.yaml", "--target", "val/nonsense=1", "scale.seeds=1")
    assert ended.code == 2
    assert "error: override 'scale.seeds=1': scale.seeds: " in ended.err
    ended = run_in_process(home, "scale", "blobs.yaml", "--target", "val/nonsense=1")
    assert "error: --target: scale.target: " in ended.err
