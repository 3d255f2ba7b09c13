"""An evaluation on Ray: one TorchTrainer, whose workers leave their result with an actor."""

import pickle
import sys
import threading
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from paceline._compat.ray import start_autoscaling_coordinator
from paceline.cluster.evaluation_config import EvaluationLaunch
from paceline.cluster.preflight import check_resources, cluster_resources
from paceline.cluster.ray_session import connected, connecting_text, is_private, on_cluster, prepare_environment
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.train_on_ray import ANSWER_SECONDS, DISMISS_SECONDS, LEAVE_SECONDS, POLL_SECONDS
from paceline.cluster.user_code import runtime_env, sent_modules
from paceline.cluster.waiting_for_resources import ready_to_train
from paceline.cluster.worker_group import (
    NodeProcesses,
    TrainerThread,
    failure_of,
    import_torch_trainer,
    only_worker_output,
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
    prepare_environment()
    warm_up = threading.Thread(target=import_torch_trainer, name="import-ray-train")
    launch.listener.stage(connecting_text(launch.address))
    packed = runtime_env(sent_modules(launch.config, "train")) if launch.address else None
    warm_up.start()
    if on_cluster(launch.address):
        warm_up.join()  # see `on_ray.train_on_ray`
    try:
        with (
            redirect_stdout(sys.stderr),  # where workers print, too
            connected(launch.address, packed),
            terminating_interrupts(),  # Ray has taken SIGTERM for itself
            only_worker_output(),
        ):
            return _connected(launch, warm_up)
    finally:
        warm_up.join()  # the end of the process would break an import off with a traceback


def _connected(launch: EvaluationLaunch, warm_up: threading.Thread) -> dict[str, Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = "the cluster" if on_cluster(launch.address) else "this machine"
    if not is_private():
        ready_to_train(launch.config, launch.wait_seconds, launch.listener)
    use_gpu = check_resources(launch.config, cluster_resources(), where)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    node = NodeProcesses()
    box = ray.remote(EvaluationResults).options(num_cpus=0, scheduling_strategy=here).remote()
    try:
        launch.listener.stage("starting the workers (usually 30 to 90 s on a small machine)")
        warm_up.join()
        if is_private():
            start_autoscaling_coordinator()
        return _ending(TrainerThread(_make_trainer(launch, box, use_gpu)), box, node)
    finally:
        _end_workers(box, node)


def _ending(fitting: TrainerThread, box: Any, node: NodeProcesses) -> dict[str, Any]:
    ending = None
    fitting.start()
    while fitting.is_alive() and ending is None and node.dead() is None:
        fitting.join(POLL_SECONDS)
        ending = _found_in(box)
    ending = ending or _found_in(box)
    if ending is None:
        return {"status": "failed", "failure": failure_of(node.dead(), fitting.error)}
    if ending["status"] != "failed":
        fitting.join(LEAVE_SECONDS)
    return ending


def _found_in(box: Any) -> dict[str, Any] | None:
    import ray

    try:
        return ray.get(box.ending.remote(), timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
    except ray.exceptions.RayError:  # busy, or gone: then the workers have no one to report to, and end
        return None


def _end_workers(box: Any, node: NodeProcesses) -> None:
    """End what is left of the group: Ray may stay up (a notebook's), and a worker may be stuck."""
    import ray

    if node.dead() is not None:
        return  # nothing can be ended by it any more; the rest ends when Ray is shut down
    try:
        with suppress(ray.exceptions.RayError):
            for worker in ray.get(box.workers.remote(), timeout=DISMISS_SECONDS):
                ray.kill(pickle.loads(worker))
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(box)


def _make_trainer(launch: EvaluationLaunch, box: Any, use_gpu: bool) -> "TorchTrainer":
    from paceline.cluster.evaluation_worker import evaluate_on_worker
    from paceline.cluster.torch_trainer import ray_scaling, torch_trainer

    config = launch.config
    given = {"request": launch.request.travelling(), "box": box}
    scaling, seconds = ray_scaling(config, use_gpu), config.parallel.timeout_seconds
    return torch_trainer(evaluate_on_worker, given, scaling, launch.folder, "evaluation", seconds)
