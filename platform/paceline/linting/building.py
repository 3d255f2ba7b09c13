"""The task and some batches for lint, with fake tensors: shapes without memory or values."""

import re
from dataclasses import dataclass
from typing import Any

import torch

from paceline._compat.torch import FakeTensorMode
from paceline.config.batch_sizes import batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataSets
from paceline.engine.batches import map_tensors, tensors_in
from paceline.engine.build_data import chosen
from paceline.engine.build_task import seed_model
from paceline.engine.loading import SeededFetcher
from paceline.errors import PacelineError, UnusableCode, text_of
from paceline.linting.fake_tensors import with_fake_tensors
from paceline.models.base import ModelConfig
from paceline.tasks._task import Task
from paceline.tasks.base import TaskConfig

SMALL, LARGE = 2, 4
"""Samples of the small and the large batch that are tried first."""
LARGEST_BATCH, LARGEST_BATCH_BYTES = 256, 1 << 26
"""Samples and bytes of the largest micro-batch that is loaded as a whole."""
_ELSEWHERE = re.compile(r"cuda|gpu|nccl|triton|process group|active drivers|fp16 and bf16|'cpu'", re.IGNORECASE)
"""Parts of errors that another device, or several ranks, may not raise."""


class CollationFailed(Exception):
    """Samples that can be loaded one by one do not make a batch."""

    def __init__(self, number: int, error: Exception) -> None:
        first = next(iter(text_of(error).splitlines()), "")
        super().__init__(f"{number} samples do not make a batch: {type(error).__name__}: {first}")


@dataclass(frozen=True)
class Batches:
    """Batches of the data, and their number."""

    small: Any
    large: Any
    datasets: DataSets
    """Data sets for training and validation."""


def build_task(config: ExperimentConfig) -> Task:
    """Build the task that training would begin with, in real memory.

    Raises:
        UnusableCode: the user's code raised an error, or returned no model.
    """
    seed_model(config.seed)
    try:
        return TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    except PacelineError:
        raise
    except Exception as error:
        what = f"{chosen('model', config.model)}, {chosen('task', config.task)}"
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise UnusableCode(f"{what}: building it failed: {reason}", "build-failed", reason=reason) from error


def build_fake_task(config: ExperimentConfig, mode: FakeTensorMode) -> Task:
    """Build the same task with fake tensors; first in real memory if the user's code needs values.

    Raises:
        UnusableCode: as `build_task`.
    """
    try:
        with mode:
            task = build_task(config)
    except Exception:  # code that needs values may fail in any way; the next line reports faults of the code
        task = build_task(config)
    return with_fake_tensors(task, mode)


def build_batches(config: ExperimentConfig) -> Batches:
    """Return a small and a larger batch of the training set.

    Raises:
        CollationFailed: the samples do not make a micro-batch as large as in training.
        Exception: of the user's data.
    """
    data: Any = config.data
    if data.describe() == "synthetic":  # the only data set whose size the config sets
        few = max(LARGE, data.num_classes)
        data = data.model_copy(update={"num_samples": min(few, data.num_samples), "num_validation_samples": 1})
    sets = data.sets()
    fetcher = SeededFetcher(sets.train, config.seed, sets.collate_fn)
    small, large = _fetched(fetcher, config)
    if config.trainer.precision == "64-true":
        small, large = _as_double(small), _as_double(large)
    return Batches(small, large, sets)


def micro_batch(config: ExperimentConfig, datasets: DataSets) -> Any:
    """Return a micro-batch of the training set, as large as in training, in random order.

    Raises:
        CollationFailed: the samples do not make such a batch.
        Exception: of the user's data.
    """
    fetcher = SeededFetcher(datasets.train, config.seed, datasets.collate_fn)
    size, order = micro_batch_size(config), torch.randperm(len(fetcher), generator=torch.Generator().manual_seed(0))
    batch = _collated(fetcher, order[torch.arange(size) % len(fetcher)])
    return _as_double(batch) if config.trainer.precision == "64-true" else batch


def may_be_loaded_whole(config: ExperimentConfig, batches: Batches) -> bool:
    """Return True if a micro-batch as large as in training costs little time and memory."""
    size = micro_batch_size(config)
    sample_bytes = sum(each.nbytes for each in tensors_in(batches.small)) / SMALL
    return size <= LARGEST_BATCH and size * sample_bytes <= LARGEST_BATCH_BYTES


def micro_batch_size(config: ExperimentConfig) -> int:
    """Samples of one forward pass of one rank; while that is open, as many as one rank may get."""
    sizes = batch_sizes(config)
    return sizes.micro_batch_size or -(-sizes.global_batch_size // sizes.world_size)


def _fetched(fetcher: SeededFetcher, config: ExperimentConfig) -> tuple[Any, Any]:
    """Return two batches. If the collation refuses small ones: one and two micro-batches, or one micro-batch twice.

    Raises:
        CollationFailed: the collation refuses a micro-batch as well.
        Exception: a sample cannot be loaded.
    """
    own = micro_batch_size(config)

    def pair(small: int, large: int) -> tuple[Any, Any]:
        return tuple(_collated(fetcher, torch.arange(size) % len(fetcher)) for size in (small, large))

    for small, large in ((SMALL, LARGE), (own, own * LARGE // SMALL)):
        try:
            return pair(small, large)
        except Exception:  # a collation may refuse a size in any way; a fault at every size is raised below
            continue
    return pair(own, own)


def may_succeed_elsewhere(error: Exception) -> bool:
    """Return True for an error of user code that another machine, another device or several ranks may not raise."""
    is_of_machine = isinstance(error, OSError | ImportError | NotImplementedError | MemoryError)
    return is_of_machine or _ELSEWHERE.search(text_of(error)) is not None


def _collated(fetcher: SeededFetcher, ids: torch.Tensor) -> Any:
    try:
        return fetcher.fetch(0, ids)
    except Exception as error:
        if fetcher.is_sliced or may_succeed_elsewhere(error):
            raise
        fetcher.samples(0, ids)  # raises if it is a sample that cannot be loaded
        raise CollationFailed(len(ids), error) from error


def _as_double(batch: Any) -> Any:
    return map_tensors(batch, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
