"""From a config to the data of a rank: data sets, loaders, order."""

from typing import Any

import torch

from paceline.config.base import Component
from paceline.config.batch_sizes import BatchSizes
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported, path_of
from paceline.config.steps import epoch_steps
from paceline.engine.caching import cached
from paceline.engine.loading import BatchLoader, SeededFetcher
from paceline.engine.order import DataOrder
from paceline.engine.precision import Precision
from paceline.engine.prepare import MEMORY_FORMATS
from paceline.engine.strategy import Strategy
from paceline.errors import TrainingError

DataSets = tuple[Any, Any]
"""Of training and validation."""


def chosen(section: str, component: Component) -> str:
    """The key and the value that choose a component, such as `model.path own:net`."""
    return f"{section}.{'path' if isinstance(component, Imported) else 'name'} {name_of(component)}"


def name_of(component: Component) -> str:
    """The name of a component, or its import path."""
    if isinstance(component, Imported) and callable(component.path):
        return path_of(component.path)
    return component.describe()


def build_loaders(
    config: ExperimentConfig, sets: DataSets, precision: Precision, device: torch.device
) -> tuple[BatchLoader, BatchLoader]:
    """Loaders of the training and the validation set. Fills their caches, where `data.cache` asks for some.

    Raises:
        UnusableCode: samples cannot be cached.
        EnvironmentFault: the cached samples do not fit into memory.
    """
    data = config.data
    train, validation = (
        BatchLoader(
            cached(SeededFetcher(dataset, config.seed), data.cache, device, data.num_workers, role),
            device,
            num_workers=data.num_workers,
            prefetch_factor=data.prefetch_factor,
            persistent_workers=data.persistent_workers,
            pin_memory=data.pin_memory,
            dtype=precision.input_dtype,
            memory_format=MEMORY_FORMATS[config.trainer.memory_format],
        )
        for role, dataset in zip(("training", "validation"), sets, strict=True)
    )
    return train, validation


def build_order(config: ExperimentConfig, samples: int, sizes: BatchSizes, strategy: Strategy) -> DataOrder:
    """The canonical order of the training set, seen from this rank.

    Raises:
        TrainingError: not one global batch can be made.
    """
    order = DataOrder(
        samples=samples,
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        rank=strategy.data_ranks.rank,
        world_size=strategy.data_ranks.world_size,
        seed=config.seed,
        shuffle=config.data.shuffle,
        drop_last=config.data.drop_last,
        is_lockstep=strategy.layout.is_sliced,
    )
    require_steps(config, samples, sizes.global_batch_size)
    return order


def require_steps(config: ExperimentConfig, samples: int, global_batch_size: int) -> None:
    """Check that an epoch has a step.

    Raises:
        TrainingError: not one global batch can be made.
    """
    if not epoch_steps(samples, global_batch_size, config.data.drop_last):
        cure = f"set data.global_batch_size to {samples} or less, or drop_last to false" if samples else "add some"
        raise TrainingError(
            f"{chosen('data', config.data)}: {samples} training samples make no global batch of "
            f"{global_batch_size}; {cure}",
            "too-few-samples",
            samples=samples,
            global_batch_size=global_batch_size,
        )
