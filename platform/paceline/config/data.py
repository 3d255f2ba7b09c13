"""The fields that every data set has in the config: how it is batched, loaded and kept."""

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from paceline.config.base import Component, Section
from paceline.config.effects import NotWith
from paceline.config.limits import BatchSize


class Sizes(NamedTuple):
    """Number of samples of the two sets."""

    train: int
    validation: int


class BatchSizeStage(Section):
    """A global batch size, and the number of samples after which it is used."""

    samples: Annotated[int, Field(ge=0, le=10**15)]
    """Samples trained on when the stage begins, 0 to 10^15: 0 for the first stage, more for each further one."""
    global_batch_size: BatchSize
    """Samples of one optimizer step over all workers, 1 to 2^31 - 1."""


class DataSection(Component):
    """The section `data`, whatever the data set.

    global_batch_size = micro_batch_size x gradient_accumulation_steps x world size: any two fix the third.
    """

    global_batch_size: BatchSize | None = None
    """Samples of one optimizer step over all workers, 1 to 2^31 - 1. `null`: follows from the other two."""
    micro_batch_size: BatchSize | Literal["max"] | None = None
    """Samples of one forward pass on one worker, 1 to 2^31 - 1. `max`: the most that fit into the memory of every
    worker, found by trial steps before training (needs `global_batch_size`; accumulation follows); a resumed run keeps
    what was found. `null`: what makes accumulation 1, or 32 when the global batch size is not set either."""
    batch_size_schedule: Annotated[list[BatchSizeStage], Field(min_length=1, max_length=1000)] | None = None
    """Global batch sizes over the training in place of `global_batch_size`, such as `[{samples: 0, global_batch_size:
    64}, {samples: 40000, global_batch_size: 256}]`: a step has the size of the last stage that has begun at its first
    sample. The order of the samples stays, `optimizer.lr_scaling` gives each stage its learning rate, and of
    `micro_batch_size` and `trainer.gradient_accumulation_steps` the one that is set stays. `null`: one size."""
    shuffle: bool = True
    """Visit the training samples in a new order each epoch, the same for a seed whatever the number of workers."""
    drop_last: bool = False
    """Leave out an epoch's last samples when they do not fill a global batch; else that batch is smaller."""
    num_workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Loader processes per training worker, 0 to 1024. 0 loads in the training process. Does not change what is
    loaded."""
    pin_memory: Annotated[bool | None, NotWith("scaling.use_gpu", False)] = None
    """Load into page-locked memory, for faster copies to a GPU. `null`: on CUDA."""
    prefetch_factor: Annotated[int, Field(ge=1, le=1024), NotWith("data.num_workers", 0)] = 2
    """Micro batches that each loader process keeps ready, 1 to 1024. Needs `num_workers` > 0."""
    persistent_workers: Annotated[bool, NotWith("data.num_workers", 0)] = True
    """Keep the loader processes from one epoch to the next. Needs `num_workers` > 0."""

    cache: Literal["none", "memory", "device"] = "none"
    """Load every sample once, before training, and keep it: `memory` in that of each worker, which then holds the whole
    data set, `device` on the worker's device. Does not change what is loaded, but for how a GPU rounds when it resizes.
    Only for samples that are the same in every epoch: those that draw from the random generators of torch, numpy or
    Python are refused; the augmentation of data sets that are in memory anyway is not. What does not stack to tensors
    is for `memory` only; all else needs the loader processes just to load it. `none`: load again in each epoch."""

    is_in_memory: ClassVar[bool] = False
    """Whether the samples are held in memory whatever `cache` says."""

    def sizes(self) -> Sizes | None:
        """Number of samples, where it is known without loading anything; else None."""
        return None

    def places(self) -> list[str]:
        """Files and folders that must be there before the data can be built, on each node that builds them."""
        return []
