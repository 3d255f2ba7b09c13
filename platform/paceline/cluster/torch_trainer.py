"""The TorchTrainer of a worker group: without the helpers that it does not need, over the interface of the nodes.

Each of these helper processes of Ray Train costs several seconds of imports, which on a machine of few cores is most of
the time from the command to the first step. Slow to import: `import_torch_trainer` does it while Ray starts.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray.train.torch
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig

from paceline._compat.ray import CLEANER_CALLBACK, DATASETS_CALLBACK, CallbackFilter
from paceline.cluster.group_backend import GroupConfig
from paceline.cluster.ray_session import is_private
from paceline.config.experiment import ExperimentConfig

UNUSED = DATASETS_CALLBACK
"""Callback for Ray Data, which is not used: data sets are torch's."""
ONLY_FOR_CLUSTERS = CLEANER_CALLBACK
"""Callback whose actor a private Ray does not need: it ends together with its driver, and has no dashboard, for which
the actor would only wait."""


class LeanTorchTrainer(CallbackFilter, ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer that leaves out what is not used."""

    private = False
    """True if Ray was started for this process alone."""

    def unused_callbacks(self) -> set[str]:
        """Return the dotted paths of the classes to leave out."""
        return {UNUSED, ONLY_FOR_CLUSTERS} if self.private else {UNUSED}


def torch_trainer(
    work: Callable[[dict[str, Any]], None],
    given: Mapping[str, Any],
    scaling: ScalingConfig,
    folder: Path,
    name: str,
    timeout_seconds: float,
    max_failures: int = 0,
    controller_failures: int = 3,
) -> LeanTorchTrainer:
    """Return the TorchTrainer of a worker group.

    Args:
        work: runs in each worker process, with `given`.
        folder: for the files of Ray Train.
        name: prefix of its name in Ray.
        timeout_seconds: seconds that one collective operation may take.
        max_failures: number of times that the group is started again after a loss; -1: without limit.
        controller_failures: the same for the controller of Ray Train.
    """
    # relative paths in the config mean the folder of the command
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    trainer = LeanTorchTrainer(
        work,
        train_loop_config=dict(given),
        torch_config=torch_config(bool(scaling.use_gpu), timeout_seconds),
        scaling_config=scaling,
        run_config=RunConfig(
            name=f"{name}-{time.time_ns()}",  # Ray would silently resume a name that it knows
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=max_failures, controller_failure_limit=controller_failures),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    trainer.private = is_private()
    return trainer


def ray_scaling(config: ExperimentConfig, use_gpu: bool) -> ScalingConfig:
    """Return the section `scaling` as Ray takes it."""
    scaling = config.scaling
    per_worker = {"CPU": scaling.cpus_per_worker}
    if use_gpu:
        per_worker["GPU"] = 1.0 if scaling.gpus_per_worker == "auto" else scaling.gpus_per_worker
    return ScalingConfig(
        num_workers=(scaling.min_workers, scaling.num_workers) if scaling.is_elastic else scaling.num_workers,
        use_gpu=use_gpu,
        resources_per_worker=per_worker,
        placement_strategy=scaling.placement.upper(),
    )


def torch_config(use_gpu: bool, timeout_seconds: float) -> GroupConfig:
    """Return the config of a worker group's process group. Tensors on CPU use gloo."""
    return GroupConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=int(timeout_seconds))
