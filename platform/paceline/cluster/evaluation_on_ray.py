"""An evaluation on Ray: one TorchTrainer, whose workers leave their result with an actor."""

import sys
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.cluster.evaluation_config import EvaluationLaunch
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.train_on_ray import ANSWER_SECONDS, LEAVE_SECONDS, POLL_SECONDS
from paceline.cluster.user_code import sent_modules
from paceline.cluster.waiting_for_resources import ready_to_train
from paceline.cluster.worker_group import (
    NodeProcesses,
    TrainerThread,
    actor_on_this_node,
    dismiss,
    failure_of,
    ray_for_workers,
)
from paceline.private_files import make_folder

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer


class EvaluationResults:
    """An actor: how the workers of an evaluation ended. The first failure stays, and else rank 0's result."""

    def __init__(self) -> None:
        self._workers: list[bytes] = []
        self._ending: dict[str, Any] | None = None

    def enter(self, worker: bytes) -> bool:
        """Note a worker, by its pickled handle; False once there is an ending, so that it has nothing to do."""
        self._workers.append(worker)
        return self._ending is None

    def finish(self, ending: dict[str, Any]) -> None:
        """Keep how a worker ended."""
        if self._ending is None or (ending["status"] == "failed" and self._ending["status"] != "failed"):
            self._ending = ending

    def ending(self) -> dict[str, Any] | None:
        """Return how the workers ended; None while they are at work."""
        return self._ending

    def workers(self) -> list[bytes]:
        """The handles of all workers."""
        return self._workers


def evaluate_on_ray(launch: EvaluationLaunch) -> dict[str, Any]:
    """Return how the workers ended, see `evaluation_worker.evaluate_rank`."""
    with writable(launch.folder):
        make_folder(launch.folder)
    modules = partial(sent_modules, launch.config, "train")
    with (
        redirect_stdout(sys.stderr),  # where workers print, too
        ray_for_workers(launch.address, modules, launch.listener) as finish_imports,
        terminating_interrupts(),  # Ray has taken SIGTERM for itself
    ):
        use_gpu = ready_to_train(launch.config, launch.wait_seconds, launch.listener)
        node = NodeProcesses()
        results = actor_on_this_node(EvaluationResults).remote()
        try:
            launch.listener.stage("starting the workers (usually 30 to 90 s on a small machine)")
            finish_imports()
            return _ending(TrainerThread(_make_trainer(launch, results, use_gpu)), results, node)
        finally:
            dismiss(results, results.workers.remote, node)


def _ending(fitting: TrainerThread, results: Any, node: NodeProcesses) -> dict[str, Any]:
    ending = None
    fitting.start()
    while fitting.is_alive() and ending is None and node.dead() is None:
        fitting.join(POLL_SECONDS)
        ending = _found_in(results)
    ending = ending or _found_in(results)
    if ending is None:
        return {"status": "failed", "failure": failure_of(node.dead(), fitting.error)}
    if ending["status"] != "failed":
        fitting.join(LEAVE_SECONDS)
    return ending


def _found_in(results: Any) -> dict[str, Any] | None:
    import ray

    try:
        return ray.get(results.ending.remote(), timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
    except ray.exceptions.RayError:  # busy, or gone: then the workers have no one to report to, and end
        return None


def _make_trainer(launch: EvaluationLaunch, results: Any, use_gpu: bool) -> "TorchTrainer":
    from paceline.cluster.evaluation_worker import evaluate_on_worker
    from paceline.cluster.torch_trainer import ray_scaling, torch_trainer

    config = launch.config
    given = {"request": launch.request.travelling(), "results": results}
    scaling, seconds = ray_scaling(config, use_gpu), config.parallel.timeout_seconds
    return torch_trainer(evaluate_on_worker, given, scaling, launch.folder, "evaluation", seconds)
