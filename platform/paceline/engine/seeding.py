"""Seeds of the global random generators: for each sample, each collation and each micro-batch.

All are pure functions of the config's seed and the place in the training, so that neither loader processes nor a
resumption change what user code draws, and no generator's state is saved.
"""

import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from paceline._compat.torch import has_forward_hooks
from paceline.callbacks.callback import Callback
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import called_components
from paceline.engine.dist_context import DistContext
from paceline.engine.order import mix

DRAW_FROM_TORCH = ("torch.", "torchvision.models.", "torchvision.ops.", "paceline.")
"""Modules whose code draws random numbers from torch's generator alone."""


def seed_everything(seed: int) -> None:
    """Seed the global CPU generators of torch, numpy and random."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def seed_collation(seed: int, epoch: int, ids: torch.Tensor) -> None:
    """Seed the generators for the user's own `collate_fn`, from the first sample and the number of samples.

    What its samples have drawn does not matter: a data set may draw only when it loads one for the first time.
    """
    seed_everything(mix(seed, epoch, int(ids[0]), len(ids)))


class StepSeeds:
    """Seeds the generators for each micro-batch of a rank.

    Args:
        only_torch: leave numpy's and Python's generator alone, see `draws_only_from_torch`.
    """

    def __init__(self, seed: int, ranks: DistContext, only_torch: bool = False) -> None:
        self._of_rank = mix(seed, ranks.rank)
        self._seed = torch.default_generator.manual_seed if only_torch else seed_everything
        self._is_cuda = ranks.device.type == "cuda"

    def apply(self, step: int, index: int) -> None:
        """Seed them for micro-batch `index` of an optimizer step. To be called when the batch is loaded, since loading
        it in this process uses the generators."""
        seed = mix(self._of_rank + (step << 20) + index)
        self._seed(seed)
        if self._is_cuda:
            torch.cuda.manual_seed(seed)


def draws_only_from_torch(
    config: ExperimentConfig, task: nn.Module, optimizer: Optimizer, callbacks: Iterable[Callback] = ()
) -> bool:
    """True if no code of a training step can draw from numpy's or Python's generator, whose seeding takes as long as
    some of the operations of a small model (15 to 40 microseconds). Callbacks say themselves whether they do.

    Args:
        task: the task and its model, without wrappers.
    """
    if any(key.partition(".")[0] == "lr_scheduler" for key, _ in called_components(config)):
        return False
    if any(callback.draws_random_numbers for callback in callbacks):
        return False
    modules = list(task.modules())
    if any(has_forward_hooks(each) or "forward" in vars(each) for each in modules):
        return False
    return all(f"{type(each).__module__}.".startswith(DRAW_FROM_TORCH) for each in [*modules, optimizer])
