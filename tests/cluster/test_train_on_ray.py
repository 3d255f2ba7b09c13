"""`train` on a real Ray, into a real MLflow store."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline import RunFailed, load_config, train
from paceline.config.loading import validate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


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


def test_ranks_in_process_and_under_ray_agree_and_mlflow_has_it_all(home: Path) -> None:
    """In float64: no workers, one and two give the same losses; the run of two is looked at closely."""
    losses = {}
    for workers in (0, 1, 2):
        # dropout is drawn per rank, so it is left out where world sizes are compared
        run = config(home, f"world-{workers}", scaling__num_workers=workers, trainer__precision="64-true")
        result = train(
            run.with_overrides({"model": {"path": "torch.nn:Linear", "args": {"in_features": 6, "out_features": 3}}})
        )
        losses[workers] = result.history["train/loss"].tolist()
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)
    assert losses[2] == pytest.approx(losses[0], abs=1e-9)
    assert result.status == "finished"
    assert Path(result.checkpoint).name == "step-12"
    _looks_right_in_mlflow(home, result)
    _loads_again(result)


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


def test_a_killed_worker_changes_no_bit(home: Path) -> None:
    whole = train(config(home, "whole", task={"path": "own_code:OwnTask"}))
    task = {
        "path": "own_code:OwnTask",
        "args": {"act": "kill", "rank": 1, "step": 7, "once": str(home / "killed")},
    }
    result = train(config(home, "killed", task=task))
    assert (home / "killed").exists()
    assert result.status == "finished"
    assert result.weights_sha256 == whole.weights_sha256
    runs = [run for run in mlflow_runs(home) if run.info.run_name == "killed"]
    assert len(runs) == 1
    assert Counter(points_of(home, runs[0], "train/loss")) == Counter(range(1, 13))
    assert result.history["train/loss"].tolist() == whole.history["train/loss"].tolist()


def test_an_exception_on_one_rank_ends_the_run_with_its_text(home: Path) -> None:
    task = {"path": "own_code:OwnTask", "args": {"act": "raise", "rank": 1, "step": 5}}
    started: list[float] = []

    class Watch:
        def stage(self, text: str) -> None: ...
        def planned(self, lines: Any) -> None: ...
        def progress(self, progress: Any) -> None:
            started.append(time.monotonic())

        def event(self, kind: str, details: Any) -> None: ...

    with pytest.raises(RunFailed, match=r"rank 1: ZeroDivisionError: the user's own mistake") as caught:
        train(config(home, "raises", task=task), listener=Watch())
    assert time.monotonic() - started[0] < 15
    assert "own_code.py" in caught.value.traceback_text
    (run,) = mlflow_runs(home)
    assert run.info.status == "FAILED"


def test_python_objects_in_place_of_paths(home: Path) -> None:
    from torch import nn

    def build() -> nn.Module:
        return nn.Linear(6, 3)

    base = validate(
        {
            "name": "objects",
            "model": {"name": "mlp"},
            "data": {"name": "mnist5k", "global_batch_size": 16},
            "trainer": {"epochs": 1},
            "scaling": {"num_workers": 1, "cpus_per_worker": 0.5},
        }
    )
    import own_code

    result = train(base, model=build, data=own_code.data())
    assert result.status == "finished"
    assert result.load_model().weight.shape == (3, 6)


def test_stopping_saves_and_the_same_config_goes_on(home: Path) -> None:
    """What Ctrl-C does, asked for from Python: the desk is told to stop."""
    import os
    import signal
    import threading

    task = {"path": "own_code:OwnTask", "args": {"pause": 0.15}}
    run = config(home, "stopped", task=task, trainer__epochs=6)

    class Stop:
        done = False

        def stage(self, text: str) -> None: ...
        def planned(self, lines: Any) -> None: ...
        def event(self, kind: str, details: Any) -> None: ...
        def progress(self, progress: Any) -> None:
            if progress.step >= 2 and not Stop.done:
                Stop.done = True
                threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    first = train(run, listener=Stop())
    assert first.status == "interrupted"
    assert 2 <= first.steps < 36
    second = train(run)
    assert (second.status, second.run_id) == ("finished", first.run_id)
    assert second.history.index.tolist() == list(range(1, 37))
    (recorded,) = mlflow_runs(home)
    assert recorded.info.status == "FINISHED"
    assert points_of(home, recorded, "train/loss") == list(range(1, 37))
