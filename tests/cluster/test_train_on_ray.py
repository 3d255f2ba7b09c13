"""`train` on a real Ray, into a real MLflow store."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from paceline import RunFailed, load_config, train
from paceline.cluster.listener import Progress, SilentListener
from paceline.engine.build import build_trainer
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]


def config(home: Path, name: str, **changes: Any) -> Any:
    """Two workers, two epochs of six steps, a point each step, a checkpoint every four."""
    tree = {
        "name": name,
        "model": {"path": "own_code:net"},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": 2, "log_every_n_steps": 1},
        "scaling": {"num_workers": 2, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
    }
    (home / f"{name}.yaml").write_text(__import__("yaml").safe_dump(tree))
    return load_config(home / f"{name}.yaml", {key.replace("__", "."): value for key, value in changes.items()})


def mlflow_runs(home: Path) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def points_of(home: Path, run: Any, key: str) -> list[int]:
    from mlflow import MlflowClient

    return [
        point.step for point in MlflowClient(f"sqlite:///{home}/mlflow.db").get_metric_history(run.info.run_id, key)
    ]


LINEAR = {"path": "torch.nn:Linear", "args": {"in_features": 6, "out_features": 3}}
"""Without dropout, which is drawn per rank, so that world sizes can be compared."""


def test_two_workers_compute_what_one_process_does_and_mlflow_has_it_all(home: Path) -> None:
    double = {"model": LINEAR, "trainer.precision": "64-true"}
    alone = train(config(home, "alone", scaling__num_workers=0).with_overrides(double))
    two = train(config(home, "two").with_overrides(double))
    assert len(alone.history) == 12
    assert two.history["train/loss"].tolist() == pytest.approx(alone.history["train/loss"].tolist(), abs=1e-9)
    assert two.status == "finished"
    assert Path(two.checkpoint).name == "step-12"
    _looks_right_in_mlflow(home, two)
    _loads_again(two)


def test_one_worker_with_python_objects_computes_the_same_until_it_is_stopped(settled_home: Path) -> None:
    from torch import nn

    def build() -> nn.Module:
        return nn.Linear(6, 3)

    import own_code

    pausing = {"path": "own_code:OwnTask", "args": {"pause": 0.1}}
    base = config(settled_home, "objects", task=pausing, trainer__precision="64-true", scaling__num_workers=1)
    alone = train(base.with_overrides({"name": "alone", "scaling.num_workers": 0, "model": LINEAR}))
    stopped = base.with_overrides({"trainer.epochs": 20})
    result = train(stopped, model=build, data=own_code.data(), listener=StopAtStep(12))
    assert result.history["train/loss"].tolist()[:12] == pytest.approx(alone.history["train/loss"].tolist(), abs=1e-9)
    assert result.status == "interrupted"
    assert 12 <= result.steps < 120
    assert Path(result.checkpoint).name == f"step-{result.steps}"
    assert result.load_model().weight.shape == (3, 6)


def _looks_right_in_mlflow(home: Path, result: Any) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    run = client.get_run(result.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["data.global_batch_size"] == "16"
    assert run.data.params["derived.micro_batch_size"] == "8"
    assert run.data.tags["paceline.run_id"] == result.run_id
    for key in ("train/loss", "lr", "samples_per_second", "step_seconds", "data_wait_fraction", "peak_memory_bytes"):
        assert points_of(home, run, key) == list(range(1, 13)), key
    assert points_of(home, run, "val/accuracy") == [6, 12]
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "loss_curve.png"} <= artifacts
    again = load_config(client.download_artifacts(run.info.run_id, "config.yaml", str(home)))
    assert again.model_dump(mode="json") == result.config.model_dump(mode="json")


def _loads_again(result: Any) -> None:
    from paceline.engine.state import weights_sha256

    model = result.load_model()
    assert weights_sha256(model.state_dict()) == result.weights_sha256
    assert "val/accuracy" in repr(result)
    assert "<table>" in result._repr_html_()


def uninterrupted(ranks: Ranks, folder: Path, epochs: int) -> tuple[str, list[float]]:
    """What two gloo processes without Ray make of the same config: final weights and losses."""
    import sys

    sys.path.insert(0, str(folder))
    # each rank writes a file of its own: one must not read what the other is just writing
    run = config(folder, f"uninterrupted-{ranks.rank}", task={"path": "own_code:OwnTask"}, trainer__epochs=epochs)
    reporter = MemoryReporter()
    outcome = build_trainer(run, ranks, reporter).fit()
    return outcome.weights_sha256, reporter.values("train/loss")


def test_neither_an_exception_nor_a_killed_worker_changes_a_bit(settled_home: Path) -> None:
    """An exception at step 5, gone on with from step 4; at the 15th step from there a worker is killed."""
    home = settled_home
    acts = {"acts": [["raise", 5], ["kill", 15]], "rank": 1, "done": str(home), "pause": 0.05}
    run = config(home, "unlucky", task={"path": "own_code:OwnTask", "args": acts}, trainer__epochs=6)
    _fails_in_time(home, run)
    (digest, losses), _ = run_ranks(uninterrupted, 2, home, 6)
    watch = Watch()
    result = train(run, listener=watch)
    assert (home / "done-kill").exists()
    assert watch.resumed == [4, 16]
    assert result.weights_sha256 == digest
    assert result.history["train/loss"].tolist() == losses
    assert result.status == "finished"
    assert result.history.index.tolist() == list(range(1, 37))
    (recorded,) = mlflow_runs(home)
    assert recorded.info.status == "FINISHED"
    assert points_of(home, recorded, "train/loss") == list(range(1, 37))


def test_workers_get_the_share_of_the_processor_that_a_script_would() -> None:
    """Ray's own choice would leave them a thirtieth beside any busy process."""
    import ray

    @ray.remote(num_cpus=0.5)
    def niceness() -> int:
        return os.nice(0)

    assert ray.get(niceness.remote()) == os.nice(0)


def _fails_in_time(home: Path, run: Any) -> None:
    with pytest.raises(RunFailed, match=r"rank 1: ZeroDivisionError: the user's own mistake") as caught:
        train(run)
    raised = (home / "done-raise").stat().st_mtime  # written by the rank right before
    assert 0 < time.time() - raised < 15
    assert "own_code.py" in caught.value.traceback_text
    (recorded,) = mlflow_runs(home)
    assert recorded.info.status == "FAILED"


class Watch(SilentListener):
    """The steps that were gone on from."""

    def __init__(self) -> None:
        self.resumed: list[int] = []

    def event(self, kind: str, details: Any) -> None:
        if kind == "resumed":
            self.resumed.append(details["step"])


class StopAtStep(SilentListener):
    """Interrupts this process, once, when training has come to a step."""

    def __init__(self, step: int) -> None:
        self.step: int | None = step

    def progress(self, progress: Progress) -> None:
        if self.step is not None and progress.step >= self.step:
            self.step = None
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
