"""Config fields that every data set has: batch sizes, loading and caching."""

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from paceline.config.base import Component, Section
from paceline.config.effects import NotWith
from paceline.config.limits import BatchSize


class Sizes(NamedTuple):
    """Number of samples of the training set and of the validation set."""

    train: int
    validation: int


class BatchSizeStage(Section):
    """A global batch size, and the number of training samples after which it is used."""

    samples: Annotated[int, Field(ge=0, le=10**15)]
    """Number of samples trained on when the stage begins, 0 to 10^15. 0 for the first stage, ascending after it."""
    global_batch_size: BatchSize
    """Samples of one optimizer step over all workers, 1 to 2^31 - 1."""


class DataSection(Component):
    """The section `data`, whatever the data set.

    global_batch_size = micro_batch_size x gradient_accumulation_steps x world size. Any two of the first three
    determine the third.
    """

    global_batch_size: BatchSize | None = None
    """Samples of one optimizer step over all workers, 1 to 2^31 - 1. `null`: follows from the other two."""
    micro_batch_size: BatchSize | Literal["max"] | None = None
    """Samples of one forward pass on one worker, 1 to 2^31 - 1. `max`: the most that fit into the memory of every
    worker, found by trial steps before training (needs `global_batch_size`; accumulation follows); a resumed run keeps
    the size. `null`: the size that makes accumulation 1, or 32 when the global batch size is not set either."""
    batch_size_schedule: Annotated[list[BatchSizeStage], Field(min_length=1, max_length=1000)] | None = None
    """Global batch sizes over the training in place of `global_batch_size`, such as `[{samples: 0, global_batch_size:
    64}, {samples: 40000, global_batch_size: 256}]`. A step has the size of the last stage that has begun at its first
    sample. The order of the samples does not change. `optimizer.lr_scaling` gives each stage its learning rate. Of
    `micro_batch_size` and `trainer.gradient_accumulation_steps`, the one that is set applies to all stages. `null`: one
    size."""
    shuffle: bool = True
    """Visit the training samples in a new order each epoch. The order depends on the seed, not on the number of
    workers."""
    drop_last: bool = False
    """Leave out an epoch's last samples when they do not fill a global batch. `false`: the last batch is smaller."""
    num_workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Loader processes per training worker, 0 to 1024. 0 loads in the training process. Does not change the samples."""
    pin_memory: Annotated[bool | None, NotWith("scaling.use_gpu", False)] = None
    """Load into page-locked memory, for faster copies to a GPU. `null`: on CUDA."""
    prefetch_factor: Annotated[int, Field(ge=1, le=1024), NotWith("data.num_workers", 0)] = 2
    """Micro batches that each loader process keeps ready, 1 to 1024. Needs `num_workers` > 0."""
    persistent_workers: Annotated[bool, NotWith("data.num_workers", 0)] = True
    """Keep the loader processes from one epoch to the next. Needs `num_workers` > 0."""

    cache: Literal["none", "memory", "device"] = "none"
    """Load every sample once, before training, and keep it. `memory`: in the main memory of each worker, which then
    holds the whole data set. `device`: on the worker's device. Does not change the samples, except for rounding when a
    GPU resizes them. Only for samples that are the same in every epoch: samples that draw from the random generators of
    torch, numpy or Python are refused, but the augmentation of data sets that are in memory anyway is allowed. Samples
    that do not stack to tensors need `memory`. For all others, loader processes are used only to load them once.
    `none`: load again in each epoch."""

    is_in_memory: ClassVar[bool] = False
    """True if the samples are held in memory whatever the value of `cache`."""

    def sizes(self) -> Sizes | None:
        """Return the number of samples if it is known without loading anything, else None."""
        return None

    def places(self) -> list[str]:
        """Return the files and folders that must exist before the data can be built, on each node that builds them."""
        return []
