"""A finished sweep whose search chooses its trials gets more of them on a real Ray, into a real MLflow store."""

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline import ExperimentConfig, load_config, sweep
from paceline.sweeps.listener import SilentSweepListener
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from support.cluster.user_folder import enter_user_folder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_user_folder(tmp_path, prepared_database, monkeypatch)


def config_of(home: Path, **section: Any) -> ExperimentConfig:
    """Return a config with trials of one worker and twelve steps."""
    tree = {
        "name": "larger",
        "model": {"path": "own_code:net"},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": 2, "log_every_n_steps": 4},
        "scaling": {"num_workers": 1, "cpus_per_worker": 0.5},
        "sweep": {"slots": 1, **section},
    }
    (home / "larger.yaml").write_text(yaml.safe_dump(tree))
    return load_config(home / "larger.yaml")


def mlflow_runs() -> tuple[Any, dict[str, Any]]:
    """Return the run of the one sweep that there is, and those of its trials by their ids."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    runs = list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))
    (parent,) = [run for run in runs if run.data.tags[metrics.KIND] == "sweep"]
    children = [run for run in runs if run is not parent]
    assert all(run.data.tags[metrics.PARENT_RUN] == parent.info.run_id for run in children)
    return parent, {run.data.tags["paceline.trial_id"]: run for run in children}


class InterruptAfter(SilentSweepListener):
    """Interrupts this process, once, when so many trials have finished."""

    def __init__(self, finished: int) -> None:
        self._left: int | None = finished

    def trials(self, view: Sequence[Trial]) -> None:
        if self._left is not None and sum(trial.state == "finished" for trial in view) >= self._left:
            self._left = None
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()


@pytest.mark.slow
def test_an_extension_of_optuna_is_interrupted_and_no_trial_is_feasible(home: Path) -> None:
    """The same command without `--extend` continues it."""
    section = {"search": "optuna", "metric": "val/loss", "constraints": {"val/accuracy": "> 2", "seconds": "< 1h"}}
    first = sweep(config_of(home, space={"optimizer.lr": {"uniform": [0.01, 0.1]}}, num_samples=1, **section))
    wider = config_of(home, space={"optimizer.lr": {"uniform": [0.01, 0.5]}}, num_samples=3, **section)
    interrupted = sweep(wider, extend=True, listener=InterruptAfter(2))
    assert (interrupted.status, interrupted.sweep_id) == ("interrupted", first.sweep_id)
    result = sweep(wider)
    assert (result.status, result.sweep_id, result.parent_run_id) == ("finished", first.sweep_id, first.parent_run_id)
    assert [trial.attempts for trial in result.trials][:2] == [1, 1]
    assert [(trial.id, trial.state, trial.broken) for trial in result.trials] == [
        (f"{number:04d}", "finished", ["val/accuracy > 2"]) for number in range(3)
    ]
    assert result.trials[0].weights_sha256 == first.trials[0].weights_sha256
    assert (result.best, result.best_config_path, result.pareto) == (None, "", [])
    assert not (result.folder / "best.yaml").exists()
    assert [trial["feasible"] for trial in result.to_json()["trials"]] == [False] * 3
    parent, children = mlflow_runs()
    assert len(children) == 3
    assert "break a constraint" in parent.data.tags[metrics.NOTE]
    assert "best/val/loss" not in parent.data.metrics
