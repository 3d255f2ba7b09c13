"""From a config to the data of a rank: data sets, loaders, order."""

from typing import Any

import torch

from paceline.config.base import Component
from paceline.config.batch_size_schedule import SCHEDULE, ScheduledSteps
from paceline.config.batch_sizes import GLOBAL, BatchSizes, schedule_of, stage_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported, path_of
from paceline.config.steps import epoch_steps
from paceline.data.base import DataSets, is_stream
from paceline.engine.caching import cached
from paceline.engine.data_stream import MapStyleStream
from paceline.engine.ddp import needs_lockstep
from paceline.engine.iterable_stream import IterableStream
from paceline.engine.loading import BatchLoader, SeededFetcher, Transfer
from paceline.engine.order import DataOrder
from paceline.engine.precision import Precision
from paceline.engine.prepare import MEMORY_FORMATS
from paceline.engine.strategy import Strategy
from paceline.errors import ConfigError, Problem, TrainingError
from paceline.tasks._task import Task


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
) -> tuple[BatchLoader | None, dict[str, BatchLoader]]:
    """Loaders of the training set (None for an iterable one) and of each validation set.

    Fills their caches, where `data.cache` asks for some.

    Raises:
        UnusableCode: samples cannot be cached.
        EnvironmentFault: the cached samples do not fit into memory.
    """

    def loader(dataset: Any, role: str) -> BatchLoader:
        return build_loader(config, SeededFetcher(dataset, config.seed, sets.collate_fn), precision, device, role)

    validation = {name: loader(dataset, f"validation {name}".rstrip()) for name, dataset in sets.validation.items()}
    return None if is_stream(sets.train) else loader(sets.train, "training"), validation


def build_data(
    config: ExperimentConfig, sets: DataSets, sizes: BatchSizes, precision: Precision, strategy: Strategy, task: Task
) -> tuple[MapStyleStream | IterableStream, dict[str, BatchLoader]]:
    """Build this rank's stream of training data, and a loader of each validation set.

    Raises:
        ConfigError: the config asks for what an iterable training set cannot do.
        TrainingError: not one global batch can be made.
    """
    loader, validation_loaders = build_loaders(config, sets, precision, strategy.ranks.device)
    if loader is None:
        return build_stream(config, sets, sizes, precision, strategy), validation_loaders
    is_lockstep = strategy.layout.is_sliced or needs_lockstep(task)
    order = build_order(config, len(loader.fetcher), sizes, strategy, is_lockstep, sets.sampler)
    return MapStyleStream(order, loader), validation_loaders


def build_stream(
    config: ExperimentConfig, sets: DataSets, sizes: BatchSizes, precision: Precision, strategy: Strategy
) -> IterableStream:
    """The stream of an iterable training set.

    Raises:
        ConfigError: the config asks for what a stream cannot do.
    """
    require_streamable(config)
    if sets.sampler is not None:
        reason = "a sampler needs samples by index, and the training set is an iterable data set"
        raise ConfigError([Problem("iterable", reason, "data", hint="leave the sampler out")])
    ranks = strategy.data_ranks
    return IterableStream(
        sets.train,
        sets.collate_fn,
        sizes.micro_batch_size,
        sizes.global_batch_size // ranks.world_size,
        config.seed,
        ranks,
        Transfer(ranks.device, precision.input_dtype, MEMORY_FORMATS[config.trainer.memory_format]),
        config.data.num_workers,
        config.data.prefetch_factor,
        config.data.drop_last,
        config.trainer.max_steps or 1,
    )


def require_streamable(config: ExperimentConfig) -> None:
    """Check a config with an iterable training set.

    Raises:
        ConfigError: it asks for what needs the number of samples, or samples by index.
    """
    wrong = [
        ("trainer.max_steps", config.trainer.max_steps is None, "is needed: the length of the stream is not known"),
        ("trainer.epochs", config.trainer.epochs is not None, "needs the length of the training set"),
        ("lr_scheduler.warmup_epochs", bool(config.lr_scheduler.warmup_epochs), "needs the length of the training set"),
        ("data.cache", config.data.cache != "none", "needs samples by index"),
        ("data.micro_batch_size", config.data.micro_batch_size == "max", "needs samples by index"),
        (SCHEDULE, schedule_of(config) is not None, "needs the length of the training set"),
        ("scaling.min_workers", config.scaling.is_elastic, "needs samples by index"),
        ("parallel.strategy", config.parallel.strategy == "pipeline", "pipeline needs samples by index"),
    ]
    hint = "the training set is an iterable data set"
    problems = [Problem("iterable", reason, key, hint=hint) for key, is_wrong, reason in wrong if is_wrong]
    if problems:
        raise ConfigError(problems)


def build_loader(
    config: ExperimentConfig, fetcher: SeededFetcher, precision: Precision, device: torch.device, role: str
) -> BatchLoader:
    """A loader as the config says. Fills its cache, where `data.cache` asks for one.

    Args:
        role: of the data set, for messages.
    """
    data = config.data
    return BatchLoader(
        cached(fetcher, data.cache, device, data.num_workers, role),
        device,
        num_workers=data.num_workers,
        prefetch_factor=data.prefetch_factor,
        persistent_workers=data.persistent_workers,
        pin_memory=data.pin_memory,
        dtype=precision.input_dtype,
        memory_format=MEMORY_FORMATS[config.trainer.memory_format],
    )


def build_order(
    config: ExperimentConfig,
    samples: int,
    sizes: BatchSizes,
    strategy: Strategy,
    is_lockstep: bool,
    sampler: Any = None,
) -> DataOrder:
    """The canonical order of the training set, seen from this rank.

    Raises:
        TrainingError: not one global batch can be made.
    """
    samples = samples if sampler is None else len(sampler)
    schedule, stages = schedule_of(config), stage_sizes(config, strategy.ranks.world_size)
    order = DataOrder(
        samples=samples,
        sampler=sampler,
        global_batch_size=sizes.global_batch_size,
        micro_batch_size=sizes.micro_batch_size,
        rank=strategy.data_ranks.rank,
        world_size=strategy.data_ranks.world_size,
        seed=config.seed,
        shuffle=config.data.shuffle,
        drop_last=config.data.drop_last,
        is_lockstep=is_lockstep,
        scheduled=ScheduledSteps(schedule, samples, config.data.drop_last) if schedule is not None else None,
        stage_micro_batch_sizes=tuple(each.micro_batch_size for each in stages),
    )
    require_steps(config, samples, max([sizes, *stages], key=lambda each: each.global_batch_size).global_batch_size)
    return order


def require_steps(config: ExperimentConfig, samples: int, global_batch_size: int) -> None:
    """Check that an epoch has a step.

    Raises:
        TrainingError: not one global batch can be made.
    """
    if not epoch_steps(samples, global_batch_size, config.data.drop_last):
        key = GLOBAL if schedule_of(config) is None else SCHEDULE
        hint = f"set {key} to {samples} or less, or drop_last to false" if samples else "add some"
        raise TrainingError(
            f"{chosen('data', config.data)}: {samples} training samples make no global batch of "
            f"{global_batch_size}; {hint}",
            "too-few-samples",
            samples=samples,
            global_batch_size=global_batch_size,
        )
