"""`paceline tuneup` as a user calls it: its output, its files, its run in MLflow."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline import list_runs, load_config
from support.cli.command import run_in_process
from support.runs.command_process import CommandProcess
from support.tuneup.short_windows import measure_in_short_windows

CODE = """
import time

import torch
from torch import nn
from torch.utils.data import Dataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, features):
        time.sleep(0.004)
        return self.layers(features)


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
model: {path: "slow_data:Net"}
data: {path: "slow_data:build", global_batch_size: 16}
optimizer: {name: sgd, lr: 0.05}
trainer: {epochs: 2}
scaling: {num_workers: 0}
tuneup:
  budget_seconds: 120
  seeds: 2
  only: [cache-memory, channels-last, fp16, exchange-bf16]
"""
"""Loading takes more than 8 ms a step, all else about 5: caching the samples is what helps. By how much is seen in few
builds, since both wait rather than compute."""
COMMAND = ("tuneup", "slow.yaml", "--json")


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    (tmp_path / "slow_data.py").write_text(CODE)
    (tmp_path / "slow.yaml").write_text(CONFIG)
    return tmp_path


@contextmanager
def begun(home: Path, num_workers: int, *overrides: str) -> Iterator[CommandProcess]:
    """The command, begun or resumed."""
    forks = num_workers == 0
    command = CommandProcess(home, {}, forks=forks)
    prepare = measure_in_short_windows if forks else None
    command.give(*COMMAND, f"scaling.num_workers={num_workers}", *overrides, prepare=prepare)
    try:
        yield command
    finally:
        command.leave()


def tuned(home: Path, num_workers: int, *overrides: str) -> dict[str, Any]:
    with begun(home, num_workers, *overrides) as command:
        return command.result()


def check_findings(found: dict[str, Any]) -> None:
    techniques = {technique["name"]: technique for technique in found["techniques"]}
    cached = techniques["cache-memory"]
    assert (cached["verdict"], cached["quality"]["verdict"]) == ("gain", "same")
    low, high = cached["speedup_interval"]
    assert cached["speedup"] > 2
    assert low < cached["speedup"] < high
    assert techniques["fp16"]["verdict"] == "not applicable"
    assert found["recommended"]["data.cache"] == "memory"
    assert found["bottleneck"].startswith("data:")
    assert max(found["split"], key=found["split"].get) == "data"
    assert found["wall_seconds"] > 0
    assert load_config(found["recommended_path"]).data.cache == "memory"
    assert "# cache-memory" in Path(found["recommended_path"]).read_text()


def check_mlflow(home: Path, found: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (run.info.status, run.data.tags["paceline.kind"]) == ("FINISHED", "tuneup")
    techniques = {technique["name"]: technique for technique in found["techniques"]}
    assert run.data.metrics["tuneup/speedup/cache-memory"] == pytest.approx(techniques["cache-memory"]["speedup"])
    assert run.data.metrics["tuneup/split/data"] == pytest.approx(found["split"]["data"])
    assert "| cache-memory | gain |" in run.data.tags["mlflow.note.content"]
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"recommended.yaml", "findings.json", "report.html", "speeds.png", "step_split.png"} <= files


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_on_two_workers_the_bottleneck_is_fixed_and_a_technique_that_hangs_is_given_up(home: Path) -> None:
    hangs = 'tuneup.techniques={"hangs": {"data.args": {"hangs": true}}}'
    found = tuned(home, 2, hangs, "tuneup.only=[cache-memory, exchange-bf16, fp16, hangs]")
    check_findings(found)
    check_mlflow(home, found)
    techniques = {technique["name"]: technique for technique in found["techniques"]}
    # the memory comes last, and only as far as there is time
    assert techniques["cache-memory"]["peak_memory_ratio"] == pytest.approx(1.0, rel=0.05)
    assert techniques["exchange-bf16"]["verdict"] != "not applicable"
    assert techniques["hangs"]["verdict"] == "not applicable"
    assert "60 s" in techniques["hangs"]["reason"]
    assert found["wall_seconds"] < 300


# Interrupted


def answered(home: Path) -> list[str]:
    """The lines of its journal that hold an answer."""
    journals = list((home / "runs" / "slow-data").glob("*/jobs.jsonl"))
    assert len(journals) <= 1
    return [line for journal in journals for line in journal.read_text().splitlines() if '"kind":"done"' in line]


def end_after(home: Path, jobs: int, how: signal.Signals, num_workers: int) -> tuple[int, str]:
    """Begin or resume it, and end it after so many more jobs; returns the exit code and stderr."""
    before = len(answered(home))
    with begun(home, num_workers) as command:
        command.until(lambda: len(answered(home)) >= before + jobs)
        os.kill(command.process.pid or 0, how)
        return command.end(), command.told()


def check_changed_code_is_refused(home: Path, num_workers: int) -> None:
    code = home / "slow_data.py"
    code.write_text(CODE.replace("0.0005", "0.0001"))
    refused = run_in_process(home, *COMMAND, f"scaling.num_workers={num_workers}")
    assert refused.code == 3, refused.err
    assert "slow_data" in refused.err
    assert "--new" in refused.err
    code.write_text(f"# A comment changes nothing.\n{CODE}")


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.ray])])
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("separate_processes_are_forked")
def test_a_tune_up_that_is_ended_twice_is_resumed_where_it_was(home: Path, num_workers: int) -> None:
    code, told = end_after(home, 3, signal.SIGTERM, num_workers)
    assert code == 130, told
    first = answered(home)
    (folder,) = (each.parent for each in (home / "runs" / "slow-data").glob("*/tuneup.json"))
    assert folder.name in told
    assert json.loads((folder / "tuneup.json").read_text())["status"] == "interrupted"
    assert end_after(home, 2, signal.SIGKILL, num_workers)[0] == -signal.SIGKILL
    second = answered(home)
    assert second[: len(first)] == first
    check_changed_code_is_refused(home, num_workers)
    found = tuned(home, num_workers)
    third = answered(home)
    assert third[: len(second)] == second
    assert found["tuneup_id"] == folder.name
    assert found["wall_seconds"] < 120 + 30  # of three launches together
    (listed,) = list_runs("slow-data", home / "runs")
    assert listed.status == "finished"
    assert 'data.cache="memory"' in listed.summary
    check_findings(found)
    check_mlflow(home, found)


# Refused before anything starts


@pytest.mark.parametrize(
    ("section", "places"),
    [
        ("{margin: 0}", ["tuneup.margin"]),
        (
            "\n  techniques:\n    theirs: {model.path: 'nomodule:build'}",
            ["bad.yaml:6", "tuneup.techniques.theirs", "nomodule"],
        ),
    ],
    ids=["value", "module"],
)
def test_a_config_error_is_reported_before_anything_starts(tmp_path: Path, section: str, places: list[str]) -> None:
    text = f"name: bad\nmodel: {{name: mlp}}\ndata: {{name: mnist5k}}\ntuneup: {section}\n"
    (tmp_path / "bad.yaml").write_text(text)
    ended = run_in_process(tmp_path, "tuneup", "bad.yaml")
    assert ended.code == 2
    assert all(place in ended.err for place in places)
    assert not (tmp_path / "runs").exists()
