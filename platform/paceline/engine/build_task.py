"""Build the task with the model in it, and settle its batch sizes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.config.batch_sizes import BatchSizes, batch_sizes, sizes_with
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig
from paceline.engine.build_data import build_loaders, chosen, require_steps, require_streamable
from paceline.engine.build_optimizer import build_optimizer
from paceline.engine.dist_context import DistContext
from paceline.engine.largest_batch import LargestBatch
from paceline.engine.loading import BatchLoader
from paceline.engine.manual_step import require_plain
from paceline.engine.precision import Precision
from paceline.engine.reporter import Reporter
from paceline.engine.seeding import seed_everything
from paceline.engine.trial_steps import Parts
from paceline.errors import UnusableCode
from paceline.models.base import ModelConfig
from paceline.tasks._task import Task
from paceline.tasks.base import TaskConfig


def build_task(config: ExperimentConfig, sizes: BatchSizes | None = None) -> Task:
    """The model in its task, on the CPU.

    Args:
        sizes: None while they are being searched for.

    Raises:
        UnusableCode: there is nothing to train.
        ConfigError: the task steps its optimizers itself, and the config asks for what does not go with that.
    """
    seed_model(config.seed)
    task = TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    require_trainable(config, task)
    if not task.automatic_optimization:
        require_plain(config, sizes)
    return task


def require_trainable(config: ExperimentConfig, task: Task) -> None:
    """Check that there is something to optimize.

    Raises:
        UnusableCode: every parameter is frozen, or there is none.
    """
    if not any(parameter.requires_grad for parameter in task.parameters()):
        raise UnusableCode(
            f"{chosen('model', config.model)}: the model has no trainable parameters; leave requires_grad on for some",
            "nothing-to-train",
        )


def seed_model(seed: int) -> None:
    """Seed all that a model's code may draw its first weights from."""
    torch.manual_seed(seed)
    seed_everything(seed)


def settle_sizes(
    config: ExperimentConfig, ranks: DistContext, reporter: Reporter, checkpoint: Path | None
) -> tuple[BatchSizes, dict[str, Any]]:
    """The batch sizes, and what each checkpoint is to remember of them. Every rank must call it.

    Args:
        checkpoint: the one that training resumes from.
    """
    asked = sizes_with(config, ranks.world_size) if config.scaling.is_elastic else batch_sizes(config)
    if isinstance(asked, BatchSizes):
        if config.scaling.is_elastic and ranks.is_first:
            reporter.event("batch", **asdict(asked), text=asked.text())
        return asked, {}

    def task() -> Task:
        return build_task(config)

    def optimizer(task: Task) -> Optimizer:
        peak_lr = config.optimizer.scaled_lr(asked.global_batch_size)
        return build_optimizer(config, task, peak_lr, ranks.device)

    def loaders() -> tuple[BatchLoader, dict[str, BatchLoader]]:
        precision = Precision(config.trainer.precision, ranks.device)
        train, validation = build_loaders(config, DataConfig.of(config.data).sets(), precision, ranks.device)
        if train is None:
            require_streamable(config)
        assert train is not None
        require_steps(config, len(train.fetcher), asked.global_batch_size)
        return train, validation

    search = LargestBatch(config, asked, ranks, reporter)
    sizes = search.settle(checkpoint, Parts(task, optimizer, loaders))
    return sizes, search.values(sizes)
