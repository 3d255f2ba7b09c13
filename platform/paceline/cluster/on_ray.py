"""Training on Ray: one TorchTrainer, whose workers run the engine, and one desk actor that they report to."""

import os
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.desk import OUTCOME, Desk
from paceline.cluster.in_process import Feed, assignment
from paceline.cluster.interrupts import first_interrupt_calls
from paceline.cluster.preflight import check_resources, cluster_resources
from paceline.cluster.session import connected, prepare_environment
from paceline.cluster.worker_output import only_worker_output
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

    from paceline.cluster.experiment import Launch

POLL_SECONDS = 0.25
LEAVE_SECONDS = 4.0
"""How long Ray Train may take to end a group whose run has ended. After a failure nobody waits: a group that lost a
rank is started once more, only to find that there is nothing left to do."""


def train_on_ray(launch: "Launch") -> tuple[dict[str, Any], dict[str, Any]]:
    """How training ended, and how its record was closed."""
    from paceline.cluster.experiment import closing_status

    prepare_environment()
    warm_up = threading.Thread(target=_import_ray_train, name="import-ray-train")
    warm_up.start()
    launch.listener.stage(f"connecting to Ray at {launch.address}" if launch.address else "starting Ray")
    # what workers print arrives on this process's stdout, where only the result belongs
    with redirect_stdout(sys.stderr), connected(launch.address), only_worker_output():
        where = "the cluster" if launch.address else "this machine"
        use_gpu = check_resources(launch.config, cluster_resources(), where)
        desk = _start_desk(launch)
        launch.listener.stage("starting the workers")
        warm_up.join()
        fitting = _Fitting(make_trainer(launch, desk, use_gpu))
        ending = _follow(launch, desk, fitting)
        launch.note_ending(ending)
        launch.listener.stage("recording the run in MLflow")
        closing = _close(desk, closing_status(ending), launch.close_seconds)
        if ending["status"] != "failed":
            fitting.join(LEAVE_SECONDS)
        return ending, closing


def _import_ray_train() -> None:
    # Takes seconds; done while Ray starts.
    import ray.train.torch  # noqa: F401


def _start_desk(launch: "Launch") -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(Desk).options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
    return actor.remote(launch.run.folder.tracking, launch.record)


def _follow(launch: "Launch", desk: Any, fitting: "_Fitting") -> dict[str, Any]:
    """Let the trainer run in its thread, and show what the desk has to tell; how training ended."""
    feed = Feed(launch.listener, launch.derived.total_steps)
    with first_interrupt_calls(lambda: desk.request_stop.remote()):
        fitting.start()
        while fitting.is_alive() and not _show(desk, feed):
            fitting.join(POLL_SECONDS)
    _show(desk, feed)
    return _ending(launch, fitting)


def _show(desk: Any, feed: Feed) -> bool:
    """Show what is new; whether training has told how it ended."""
    import ray

    try:
        view = feed.show(lambda seen: ray.get(desk.view.remote(seen), timeout=5.0))
    except ray.exceptions.RayError:
        return False  # the desk is busy or being restarted: the next look comes soon
    return bool(view.ended)


def _ending(launch: "Launch", fitting: "_Fitting") -> dict[str, Any]:
    import json

    path = launch.run.folder.tracking / OUTCOME
    if path.exists():
        ending = dict(json.loads(path.read_text()))
        if ending["status"] == "failed":
            launch.listener.event("failed", {"reason": ending["failure"]["reason"]})
        return ending
    reason = _first_line(fitting.error) if fitting.error else "the workers ended without a result"
    failure = {"rank": -1, "reason": reason, "traceback_text": str(fitting.error or ""), "exit_code": 1}
    return {"status": "failed", "failure": failure}


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _close(desk: Any, status: tuple[str, str | None], timeout_seconds: float) -> dict[str, Any]:
    import ray

    try:
        report = ray.get(desk.close.remote(*status, timeout_seconds), timeout=timeout_seconds + 30)
        return {"report": report, "history": ray.get(desk.history.remote(), timeout=30)}
    except ray.exceptions.RayError as error:
        report = {"url": None, "run_id": None, "unsent": -1, "error": _first_line(error)}
        return {"report": report, "history": []}


class _Fitting(threading.Thread):
    """`TorchTrainer.fit()` in a thread, which keeps Ray from taking over the signals."""

    def __init__(self, trainer: "TorchTrainer") -> None:
        super().__init__(name="ray-train-fit", daemon=True)
        self.error: BaseException | None = None
        self._trainer = trainer

    def run(self) -> None:
        try:
            self._trainer.fit()
        except (Exception, SystemExit) as error:  # Ray raises SystemExit here when it is shut down
            self.error = error


def make_trainer(launch: "Launch", desk: Any, use_gpu: bool) -> "TorchTrainer":
    """The TorchTrainer of a run."""
    from ray.train import FailureConfig, LoggingConfig, RunConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from paceline.cluster.worker import train_on_worker

    # relative paths in the config mean the folder of the command
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    config = launch.config
    return TorchTrainer(
        train_on_worker,
        train_loop_config={"assignment": assignment(launch).travelling(), "desk": desk},
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=int(config.parallel.timeout_seconds)
        ),
        scaling_config=ray_scaling(config, use_gpu),
        run_config=RunConfig(
            # a name of its own for each launch: Ray would silently resume one that it knows
            name=f"launch-{time.time_ns()}",
            storage_path=str(_ray_folder(launch.run.folder.path)),
            failure_config=FailureConfig(max_failures=config.scaling.max_failures, controller_failure_limit=3),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )


def ray_scaling(config: ExperimentConfig, use_gpu: bool) -> Any:
    """Our scaling section in Ray's words."""
    from ray.train import ScalingConfig

    scaling = config.scaling
    per_worker = {"CPU": scaling.cpus_per_worker}
    if use_gpu:
        per_worker["GPU"] = 1.0 if scaling.gpus_per_worker == "auto" else scaling.gpus_per_worker
    return ScalingConfig(
        num_workers=scaling.num_workers,
        use_gpu=use_gpu,
        resources_per_worker=per_worker,
        placement_strategy=scaling.placement.upper(),
    )


def _ray_folder(run: Path) -> Path:
    folder = run / "ray"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"the run's folder {run} is not writable: {error.strerror}") from None
    return folder
