"""`train` on a real Ray, into a real MLflow store."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline import RunFailed, load_config, train
from paceline.cluster.listener import RunProgress, SilentListener
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256
from support.cluster.listening import require_private
from support.ranks import run_ranks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]

STEPS = list(range(1, 25))
TALKATIVE = """
import torch.distributed as dist
import own_code

def net():
    if dist.is_initialized() and dist.get_rank() == 0:
        print("built on rank 0")
    return own_code.net()
"""
METRICS = ("train/loss", "lr", "samples_per_second", "step_seconds", "data_wait_fraction", "peak_memory_bytes")


def config(home: Path, name: str, **changes: Any) -> Any:
    """Two workers, epochs of six steps, a point each step, a checkpoint every four."""
    tree = {
        "name": name,
        "model": {"path": "own_code:net"},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"log_every_n_steps": 1},
        "scaling": {"num_workers": 2, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
    }
    (home / f"{name}.yaml").write_text(json.dumps(tree))
    return load_config(home / f"{name}.yaml", {key.replace("__", "."): value for key, value in changes.items()})


def client_of(home: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{home}/mlflow.db")


def mlflow_runs(home: Path) -> list[Any]:
    client = client_of(home)
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def steps_of(home: Path, run: Any, key: str) -> list[int]:
    return [point.step for point in client_of(home).get_metric_history(run.info.run_id, key)]


class Watch(SilentListener):
    """Keeps the steps that were resumed from, and checks once that no other machine reaches Ray or the workers.

    Interrupts this process once, at a step after the first of those.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        self.resumed: list[int] = []
        self.checked = False
        self._stop_at = stop_at

    def event(self, kind: str, details: Any) -> None:
        if kind == "resumed":
            self.resumed.append(details["step"])

    def progress(self, progress: RunProgress) -> None:
        if not self.checked and progress.step:
            require_private(psutil.Process().children(recursive=True))
            self.checked = True
        if self._stop_at is not None and self.resumed and progress.step >= self._stop_at:
            self._stop_at = None
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()


def uninterrupted(ranks: DistContext, folder: Path, **changes: Any) -> tuple[str, list[float]]:
    """The final weights and the losses of the same config in two gloo processes without Ray."""
    sys.path.insert(0, str(folder))
    # each rank writes a file of its own: one must not read what the other is just writing
    run = config(folder, f"uninterrupted-{ranks.rank}", **changes)
    reporter = MemoryReporter()
    outcome = build_trainer(run, ranks, reporter).fit()
    return outcome.weights_sha256, reporter.values("train/loss")


def groups() -> int:
    """How many groups of workers there have been on this Ray: each has a placement group of its own."""
    from ray.util import placement_group_table

    return len(placement_group_table())


@pytest.mark.parametrize("is_interrupted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_neither_an_exception_nor_ctrl_c_nor_a_killed_worker_changes_a_bit(
    home: Path, capsys: pytest.CaptureFixture[str], is_interrupted: bool
) -> None:
    """An exception at step 5, resumed from 4; perhaps Ctrl-C; at the 12th step from there, a worker is killed."""
    (home / "talkative.py").write_text(TALKATIVE)
    acts = {"acts": [["raise", 5], ["kill", 12]], "rank": 1, "done": str(home), "pause": 0.15}
    task = {"path": "own_code:OwnTask", "args": acts}
    model = {"path": "talkative:net"}
    run = config(home, "unlucky", model=model, task=task, trainer__epochs=4, parallel__timeout_seconds=60)
    groups_before = groups()
    with pytest.raises(RunFailed, match=r"rank 1: ZeroDivisionError: the user's own mistake") as caught:
        train(run)
    raised = (home / "done-raise").stat().st_mtime  # written by the rank right before
    assert 0 < time.time() - raised < run.parallel.timeout_seconds  # rank 0 does not wait for a peer that is gone
    assert "own_code.py" in caught.value.traceback_text
    (recorded,) = mlflow_runs(home)
    assert recorded.info.status == "FAILED"

    started_from = 4
    if is_interrupted:
        watch = Watch(stop_at=5)
        interrupted = train(run, listener=watch)
        assert (interrupted.status, watch.resumed) == ("interrupted", [started_from])
        started_from = interrupted.steps
        assert Path(interrupted.checkpoint).name == f"step-{started_from}"
        assert not (home / "done-kill").exists()

    watch = Watch()
    capsys.readouterr()
    result = train(run, listener=watch)
    assert (home / "done-kill").exists()
    assert watch.checked
    # Ray Train's own `print` would show each twice: once as it is printed, once as a log record
    assert capsys.readouterr().err.count("built on rank 0") == len(watch.resumed) == 2
    assert groups() - groups_before == 3 + is_interrupted, "only the one that has lost a worker is started again"
    last_checkpoint = (started_from + 11) // 4 * 4
    assert watch.resumed[0] == started_from
    assert watch.resumed[1:] in ([last_checkpoint], [last_checkpoint - 4])  # the last may just be written
    assert (result.status, result.run_id) == ("finished", recorded.data.tags["paceline.run_id"])
    (digest, losses), _ = run_ranks(
        uninterrupted, 2, home, task={"path": "own_code:OwnTask"}, trainer__epochs=run.trainer.epochs
    )
    assert result.weights_sha256 == digest
    assert result.history["train/loss"].tolist() == losses
    assert result.history.index.tolist() == STEPS
    assert Path(result.checkpoint).name == f"step-{STEPS[-1]}"
    assert weights_sha256(result.load_model().state_dict()) == digest

    (recorded,) = mlflow_runs(home)
    assert recorded.info.status == "FINISHED"
    params = recorded.data.params
    assert (params["data.global_batch_size"], params["derived.micro_batch_size"]) == ("16", "8")
    assert recorded.data.tags["paceline.run_id"] == result.run_id
    assert {key: steps_of(home, recorded, key) for key in METRICS} == dict.fromkeys(METRICS, STEPS)
    assert steps_of(home, recorded, "val/accuracy") == STEPS[5::6]
    artifacts = {item.path for item in client_of(home).list_artifacts(recorded.info.run_id)}
    assert {"config.yaml", "loss_curve.png"} <= artifacts


def test_workers_have_the_niceness_of_a_script() -> None:
    """Ray's own choice would leave them a thirtieth of a processor beside any busy process."""
    import ray

    @ray.remote(num_cpus=0.5)
    def niceness() -> int:
        return os.nice(0)

    assert ray.get(niceness.remote()) == os.nice(0)


def test_process_group_is_known_to_ray_trains_controller_without_torch() -> None:
    """Each worker group waits for what its controller imports."""
    import ray

    from paceline.cluster.torch_trainer import torch_config

    @ray.remote(num_cpus=0.5)
    def has_torch(config: Any) -> bool:
        return config.backend_cls is not None and "torch" in sys.modules

    assert not ray.get(has_torch.remote(torch_config(use_gpu=False, timeout_seconds=60.0)))
