"""The points of a plan: micro batch x precision x activation checkpointing, around a config."""

import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

from paceline.config.batch_sizes import ACCUMULATION, GLOBAL, MICRO, BatchSizes, batch_sizes, largest_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.config.overrides import ConfigWarning
from paceline.errors import ConfigError

PRECISION = "trainer.precision"
CHECKPOINTING = "trainer.activation_checkpointing"
PRECISIONS = ("32-true", "bf16-mixed")
CHECKPOINTINGS = ("none", "selective", "full")
"""The less is computed twice, the earlier."""
MOST_SIZES = 5

Overrides = dict[str, Any]


def grid_of(config: ExperimentConfig) -> dict[str, Overrides]:
    """Overrides that keep the global batch and make a valid config, by the config that they make, as JSON: none twice.

    The config's own precision comes first, then the least recomputation, then the largest micro batch.
    """
    precisions = dict.fromkeys((config.trainer.precision, *PRECISIONS))
    modes = dict.fromkeys((*CHECKPOINTINGS, config.trainer.activation_checkpointing))
    fixed = _fixed(config)
    found: dict[str, Overrides] = {}
    for precision, mode, size in product(precisions, modes, micro_batch_sizes(config)):
        overrides = {MICRO: size, PRECISION: precision, CHECKPOINTING: mode, **fixed}
        if (made := changed(config, overrides)) is not None:
            found.setdefault(made.model_dump_json(), overrides)
    return found


def changed(config: ExperimentConfig, overrides: Overrides) -> ExperimentConfig | None:
    """The config with overrides; None when they do not go together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        try:
            made = config.with_overrides(overrides)
            largest_sizes(made)
        except ConfigError:
            return None
    return made


def micro_batch_sizes(config: ExperimentConfig) -> list[int]:
    """The config's own and some that divide a worker's share of the (largest) global batch, the largest first."""
    sizes = largest_sizes(config)
    share = sizes.global_batch_size // sizes.world_size
    own = [sizes.micro_batch_size] if isinstance(sizes, BatchSizes) else []
    return sorted({*own, *_halves(share)}, reverse=True)


def _halves(share: int) -> Iterator[int]:
    """The share and divisors of it, each at most half of the one before."""
    size, count = share, 0
    while size >= 1 and count < MOST_SIZES:
        yield size
        count += 1
        size = next((each for each in range(size // 2, 0, -1) if share % each == 0), 0)


def _fixed(config: ExperimentConfig) -> Overrides:
    """Return the overrides that keep the global batch where the micro batch changes."""
    fixed: Overrides = {}
    if config.trainer.gradient_accumulation_steps != "auto":
        fixed[ACCUMULATION] = "auto"
    if config.data.global_batch_size is None and config.data.batch_size_schedule is None:
        fixed[GLOBAL] = batch_sizes(config).global_batch_size
    return fixed
