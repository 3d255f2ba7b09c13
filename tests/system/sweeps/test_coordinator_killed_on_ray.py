"""SIGKILL of a sweep's coordinator in mid-sweep on a real Ray: its trials do not notice, and MLflow has all of them."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from mlflow import MlflowClient

from paceline import ExperimentConfig, SweepResult, load_config, sweep
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.sweeps.listener import SilentSweepListener
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.trial import Trial
from support.cluster.job_cluster import wait_until
from support.cluster.user_folder import end_pauses, enter_user_folder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]

PROCESS = f"ray::{SweepCoordinator.__name__}"
STEPS = 24


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_user_folder(tmp_path, prepared_database, monkeypatch)


def config(home: Path, name: str, pause: float, **section: Any) -> Any:
    """Four trials of one worker on two slots, a point each step."""
    tree = {
        "name": name,
        "model": {"path": "own_code:net"},
        "task": {"path": "own_code:OwnTask", "args": {"pause": pause}},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": 4, "log_every_n_steps": 1},
        "scaling": {"num_workers": 1, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
        "sweep": {"space": {"optimizer.lr": [0.02, 0.04, 0.08, 0.16]}, "slots": 2, **section},
    }
    (home / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    return load_config(home / f"{name}.yaml")


def coordinators() -> list[psutil.Process]:
    """The processes of coordinators of sweeps on the Ray of these tests."""
    own = psutil.Process().children(recursive=True)
    return [process for process in own if process.is_running() and title_of(process).startswith(PROCESS)]


def title_of(process: psutil.Process) -> str:
    """What Ray has named a process; empty for one that has ended."""
    try:
        return (process.cmdline() or [""])[0].strip()
    except psutil.Error:
        return ""


class KillCoordinator(SilentSweepListener):
    """Kills the coordinator, once, while two trials are at work, which pause at each step until it is back."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.killed: int | None = None
        self.codes: list[str] = []
        """Of the events: a warning's own code, the kind of others."""

    def trials(self, view: Sequence[Trial]) -> None:
        at_work = [trial for trial in view if trial.state == "running" and trial.steps >= 3]
        if self.killed is None and len(at_work) == 2:
            [coordinator] = coordinators()
            self.killed = coordinator.pid
            threading.Thread(target=coordinator.send_signal, args=(signal.SIGKILL,)).start()

    def event(self, kind: str, details: Any) -> None:
        self.codes.append(details.get("code", kind))
        if self.codes[-1] == "coordinator-restarted":
            end_pauses(self.home)


def steps_in_mlflow(home: Path, result: SweepResult) -> dict[str, list[int]]:
    """By trial, the steps of its training loss."""
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    return {
        trial.id: [point.step for point in client.get_metric_history(trial.mlflow_run_id, "train/loss")]
        for trial in result.trials
    }


def trained_alone(run: ExperimentConfig) -> tuple[str, float]:
    """The final weights and the loss of a trial that is trained in this process, without Ray."""
    outcome = build_trainer(run, DistContext.current(torch.device("cpu")), MemoryReporter()).fit()
    return outcome.weights_sha256, outcome.metrics["val/loss"]


ASHA = {"scheduler": "asha", "first_rung": 96, "rung_factor": 2}


@pytest.mark.parametrize("section", [{}, pytest.param(ASHA, marks=pytest.mark.slow)])
def test_no_trial_begins_again_and_results_are_those_of_undisturbed_trainings(
    home: Path, section: dict[str, Any]
) -> None:
    listener = KillCoordinator(home)
    result = sweep(config(home, "killed", 0.3, **section), listener=listener)
    assert listener.killed is not None
    assert not psutil.pid_exists(listener.killed)
    assert result.status == "finished"
    assert [trial.attempts for trial in result.trials] == [1, 1, 1, 1]
    assert listener.codes.count("coordinator-restarted") == 1
    assert not {"restarted", "failed"} & set(listener.codes)
    wait_until(lambda: coordinators() == [], 20)
    steps = steps_in_mlflow(home, result)
    assert steps == {trial.id: list(range(1, trial.steps + 1)) for trial in result.trials}
    assert result.cost is not None
    assert result.cost.gap < 0.05
    finished = [trial for trial in result.trials if trial.state == "finished"]
    if section:
        assert {trial.state for trial in result.trials} <= {"finished", "pruned"}
        assert finished
    else:
        assert len(finished) == 4
        assert steps["0000"] == list(range(1, STEPS + 1))
    alone = config(home, "alone", 0.0)
    undisturbed = [trained_alone(trial_config(alone, trial.params)) for trial in finished]
    assert [(trial.weights_sha256, trial.metrics["val/loss"]) for trial in finished] == undisturbed
