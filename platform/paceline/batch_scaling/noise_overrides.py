"""Overrides with which a study measures the gradient noise scale while it trains the config as it is."""

from typing import Any

from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig

MEASUREMENTS = 200
"""Fewest measurements over the config's training length."""


def noise_overrides(config: ExperimentConfig, steps: int, normalises_batches: bool) -> dict[str, Any]:
    """Return the overrides with which a training measures the noise scale; empty where that is not possible.

    A step that has one gradient is split into two micro-batches.

    Args:
        steps: optimizer steps of the training.
        normalises_batches: whether the model normalises over micro-batches, so that they must not be split.
    """
    if config.parallel.strategy != "ddp" or config.parallel.comm_hook == "powersgd":
        return {}
    if config.optimizer.lr_scaling == "adascale" or config.data.micro_batch_size == "max":
        return {}
    batch = derive(config, None).batch
    measured = {
        "trainer.noise_scale": True,
        "trainer.noise_scale_every_n_steps": max(1, min(10, steps // MEASUREMENTS)),
    }
    if config.scaling.num_workers > 1 or (batch.gradient_accumulation_steps or 1) > 1:
        return measured
    size = batch.global_batch_size
    if normalises_batches or size % 2:
        return {}
    halves = {
        "data.global_batch_size": size,
        "data.micro_batch_size": size // 2,
        "trainer.gradient_accumulation_steps": "auto",
    }
    return {**measured, **halves}
