"""`search: scale`: batch sizes and learning rates along the valley in which the optimum is expected.

The best learning rate follows the batch size by the optimizer's rule, linear for SGD (Goyal et al. 2017,
arXiv:1706.02677) and with the root for Adam (Malladi et al. 2022, arXiv:2205.10287), from what the config has. A grid
spends most of its trials far from it.
"""

from math import exp, log, sqrt
from random import Random
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.space import LogUniform
from paceline.config.sweep import SweepConfig
from paceline.config.sweep_checks import BATCH_AXIS, LR_AXIS

WIDTH = 4.0
"""Learning rates are tried up to so many times the expected one, or down to its share."""
GOLDEN = (sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, fill an interval evenly however many there are (Weyl's sequence)."""


def valley_settings(config: ExperimentConfig, sweep: SweepConfig) -> list[dict[str, Any]]:
    """Return `num_samples` settings: the batch sizes in turn, the learning rates on both sides of the valley, the
    other axes drawn. More of them begin with the same."""
    rng, sizes, rates = Random(config.seed), sweep.lists[BATCH_AXIS], sweep.space[LR_AXIS]
    assert isinstance(rates, LogUniform)
    low, high = rates.bounds
    settings = []
    for number in range(sweep.num_samples or 0):
        size, turn = sizes[number % len(sizes)], number // len(sizes)
        # the first one of each batch size is in the middle
        offset = 2 * ((turn * GOLDEN + 0.5) % 1) - 1
        lr = expected_lr(config, size) * exp(offset * log(WIDTH))
        others = {
            name: rng.choice(axis) if isinstance(axis, list) else axis.sample(rng)
            for name, axis in sweep.space.items()
            if name not in (BATCH_AXIS, LR_AXIS)
        }
        chosen = {BATCH_AXIS: size, LR_AXIS: min(max(lr, low), high), **others}
        settings.append({name: chosen[name] for name in sweep.space})
    return settings


def expected_lr(config: ExperimentConfig, size: int) -> float:
    """Return `optimizer.lr` for a batch size: by the optimizer's usual rule, unless `optimizer.lr_scaling` follows the
    batch by itself."""
    optimizer, own = config.optimizer, config.data.global_batch_size
    if optimizer.lr_scaling != "none" or not isinstance(own, int):
        return optimizer.lr
    ratio = size / own
    return optimizer.lr * (ratio if optimizer.lr_scaling_rule == "linear" else sqrt(ratio))
