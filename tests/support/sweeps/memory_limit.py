"""Sweeps whose points have to fit into `sweep.device_memory_gib`."""

from collections.abc import Mapping
from typing import Any

from paceline.config import ExperimentConfig
from paceline.sweeps.planning.memory_limit import FittingTrials, fitting
from paceline.sweeps.planning.planned_trials import plan_trials
from paceline.sweeps.trial import Trial
from support.sweeps.configs import sweep_config
from support.sweeps.launches import RecordingListener

GIB = 2**30
LIMIT = 0.01
"""Memory of a device, in GiB."""


def sweep_with_limit(
    axis: tuple[str, list[Any]], limit: float | None = LIMIT, model: dict[str, Any] | None = None, **sweep: Any
) -> ExperimentConfig:
    """A sweep over one axis on devices of `limit` GiB."""
    data = {"name": "synthetic", "shape": [256], "num_samples": 64, "global_batch_size": 16, "num_classes": 10}
    base = {"model": model or {"name": "mlp", "in_features": 256, "hidden": [8]}, "data": data}
    return sweep_config(
        dict([axis]), {**base, "scaling": {"num_workers": 1, "use_gpu": False}}, device_memory_gib=limit, **sweep
    )


def fit(config: ExperimentConfig, ended: Mapping[str, Trial] | None = None, listener: Any = None) -> FittingTrials:
    """The points that fit."""
    return fitting(config, plan_trials(config), ended or {}, listener or RecordingListener())
