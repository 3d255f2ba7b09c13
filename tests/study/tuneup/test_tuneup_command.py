"""`paceline tuneup` as a user calls it: what it prints, what it leaves behind, what MLflow shows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from paceline import load_config

CODE = """
import time

import torch
from torch.utils.data import Dataset


class Slow(Dataset):
    def __init__(self, samples, hangs=False):
        self.samples = samples
        self.hangs = hangs

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        time.sleep(3600.0 if self.hangs else 0.0005)
        return torch.full((6,), float(index % 3)), index % 3


def build(hangs=False):
    return Slow(192, hangs), Slow(24)
"""
CONFIG = """
name: slow-data
model: {name: mlp, in_features: 6, num_classes: 3, hidden: [8]}
data: {path: "slow_data:build", global_batch_size: 16}
optimizer: {name: sgd, lr: 0.05}
trainer: {epochs: 2}
scaling: {num_workers: WORKERS}
tuneup:
  budget_seconds: BUDGET
  seeds: 2
  skip: [compile, checkpointing-full, checkpointing-selective, accumulation-2, bf16, log-every-50, loader-1, loader-2]
"""
"""Loading takes 8 ms a step, all else less than 1: caching the samples is what helps."""


COMMAND = [sys.executable, "-m", "paceline.cli", "tuneup", "slow.yaml", "--json"]


def lay_out(home: Path, workers: int, budget_seconds: float) -> None:
    (home / "slow_data.py").write_text(CODE)
    text = CONFIG.replace("WORKERS", str(workers)).replace("BUDGET", str(budget_seconds))
    (home / "slow.yaml").write_text(text)


def tuned(home: Path, workers: int, budget_seconds: float, *overrides: str) -> dict[str, Any]:
    lay_out(home, workers, budget_seconds)
    done = subprocess.run([*COMMAND, *overrides], cwd=home, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _looks_right(home: Path, found: dict[str, Any]) -> None:
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert arms["cache-memory"]["verdict"] == "gain"
    assert arms["cache-memory"]["speedup"] > 2
    low, high = arms["cache-memory"]["speedup_interval"]
    assert low < arms["cache-memory"]["speedup"] < high
    assert arms["cache-memory"]["quality"]["verdict"] == "same"
    assert arms["fp16"]["verdict"] == "not applicable"
    assert found["recommended"]["data.cache"] == "memory"
    assert found["bottleneck"].startswith("data:")
    assert max(found["split"], key=found["split"].get) == "data"
    assert found["wall_seconds"] > 0
    recommended = load_config(found["recommended_path"])
    assert recommended.data.cache == "memory"
    assert "# cache-memory: each sample is loaded once" in Path(found["recommended_path"]).read_text()


def _has_measured_memory(found: dict[str, Any]) -> None:
    """Which comes last, and only as far as there is time: a minute may not do beside other tests."""
    (cached,) = (arm for arm in found["arms"] if arm["name"] == "cache-memory")
    assert cached["peak_memory_ratio"] == pytest.approx(1.0, rel=0.05)


def _is_in_mlflow(home: Path, found: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.status == "FINISHED"
    assert run.data.tags["paceline.kind"] == "tuneup"
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert run.data.metrics["tuneup/speedup/cache-memory"] == pytest.approx(arms["cache-memory"]["speedup"])
    assert run.data.metrics["tuneup/split/data"] == pytest.approx(found["split"]["data"])
    note = run.data.tags["mlflow.note.content"]
    assert "| cache-memory | gain |" in note
    assert f"(get-artifact?path=step_split.svg&run_uuid={run.info.run_id})" in note
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"recommended.yaml", "findings.json", "report.html", "speeds.svg", "step_split.svg"} <= files
    has_memory = found["peak_memory_ratio"] is not None or any(arm["peak_memory_ratio"] for arm in found["arms"])
    assert ("speed_memory.svg" in files) is has_memory


def test_a_slow_data_set_is_found_out_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = tuned(tmp_path, workers=0, budget_seconds=120)
    _looks_right(tmp_path, found)
    _has_measured_memory(found)
    _is_in_mlflow(tmp_path, found)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_the_same_on_two_workers_under_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = tuned(tmp_path, workers=2, budget_seconds=240)
    _looks_right(tmp_path, found)
    _has_measured_memory(found)
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert arms["exchange-bf16"]["verdict"] != "not applicable"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_technique_that_hangs_is_given_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = tuned(tmp_path, 1, 240, 'tuneup.arms={"hangs": {"data.args": {"hangs": true}}}')
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert arms["hangs"]["verdict"] == "not applicable"
    assert arms["hangs"]["reason"].startswith("it cannot be run: it took more than 60 s, and was ended: ")
    assert arms["cache-memory"]["verdict"] == "gain"
    assert found["recommended"]["data.cache"] == "memory"
    assert found["wall_seconds"] < 300


def answered(home: Path) -> list[str]:
    """The lines of its journal that hold an answer."""
    journals = list((home / "runs" / "slow-data").glob("*/jobs.jsonl"))
    assert len(journals) <= 1
    return [line for journal in journals for line in journal.read_text().splitlines() if '"kind":"done"' in line]


def end_after(home: Path, jobs: int, how: signal.Signals) -> tuple[int, str]:
    """Begin it, or go on with it, and end it after so many more jobs; returns the exit code and what it told."""
    before = len(answered(home))
    with subprocess.Popen(COMMAND, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = monotonic() + 240
        while len(answered(home)) < before + jobs:
            assert process.poll() is None, process.communicate()[1]
            assert monotonic() < deadline
            sleep(0.05)
        process.send_signal(how)
        _, told = process.communicate(timeout=60)
    return process.returncode, told


def _refuses_changed_code(home: Path) -> None:
    code = home / "slow_data.py"
    code.write_text(CODE.replace("0.0005", "0.0001"))
    refused = subprocess.run(COMMAND, cwd=home, capture_output=True, text=True, timeout=240)
    assert refused.returncode == 3
    told = "an earlier launch has measured something else here (slow_data has changed): start anew with --new"
    assert told in refused.stderr
    code.write_text(f"# It may say what it does.\n{CODE}")


def _goes_on_after_kills(home: Path, workers: int, budget_seconds: float) -> None:
    lay_out(home, workers, budget_seconds)
    code, told = end_after(home, 5, signal.SIGTERM)
    assert code == 130, told
    first = answered(home)
    (folder,) = (each.parent for each in (home / "runs" / "slow-data").glob("*/tuneup.json"))
    assert f"interrupted: the same command goes on with {folder.name}" in told
    assert json.loads((folder / "tuneup.json").read_text())["status"] == "interrupted"
    assert end_after(home, 3, signal.SIGKILL)[0] == -signal.SIGKILL
    second = answered(home)
    assert second[: len(first)] == first
    _refuses_changed_code(home)
    found = tuned(home, workers, budget_seconds)
    third = answered(home)
    assert third[: len(second)] == second
    assert found["wall_seconds"] < budget_seconds + 30  # of three launches together
    assert "is that of an earlier launch, which had been interrupted" in "".join(found["notes"])
    _looks_right(home, found)
    _is_in_mlflow(home, found)


def test_a_tune_up_that_is_ended_twice_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _goes_on_after_kills(tmp_path, workers=0, budget_seconds=60)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_the_same_under_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _goes_on_after_kills(tmp_path, workers=1, budget_seconds=120)


def test_a_config_error_says_what_is_wrong_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\nmodel: {name: mlp}\ndata: {name: mnist5k}\ntuneup: {margin: 0}\n")
    command = [sys.executable, "-m", "paceline.cli", "tuneup", "bad.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "tuneup.margin" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_technique_whose_module_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "name: own\nmodel: {name: mlp, in_features: 784}\ndata: {name: mnist5k}\n"
        "tuneup:\n  arms:\n    theirs: {model.path: 'nomodule:build'}\n"
    )
    command = [sys.executable, "-m", "paceline.cli", "tuneup", "own.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "own.yaml:6" in done.stderr
    assert "tuneup.arms.theirs: model.path: no module named 'nomodule'" in done.stderr
    assert not (tmp_path / "runs").exists()
