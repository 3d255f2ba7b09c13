"""Subject of the rules: a config, the task that it builds, and the trace of that task."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.config.batch_sizes import BatchSizes, batch_sizes, largest_sizes, schedule_of
from paceline.config.data import Sizes
from paceline.config.experiment import ExperimentConfig
from paceline.config.steps import epoch_steps, training_steps
from paceline.errors import UnusableCode
from paceline.linting.building import Batches, may_be_loaded_whole, micro_batch
from paceline.linting.tracing import TaskTrace
from paceline.tasks._task import Task

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Obstacle:
    """Reason why the task could not be run."""

    place: str
    """`data` or `task`."""
    reason: str
    unusable: UnusableCode | None = None
    """The error that ends training as well, where there is one."""
    ends_training: bool = False
    """True if a whole micro-batch of real data fails, too, for a reason that is not this machine's."""


@dataclass(frozen=True)
class Subject:
    """Everything that a rule may look at."""

    config: ExperimentConfig
    task: Task
    """In training mode, of fake tensors where that works."""
    asleep: frozenset[str]
    """Modules that the user's code had put in evaluation mode when the task was built."""
    batches: Batches | None
    """None where the data cannot be built here."""
    trace: TaskTrace | None
    """None where the task cannot be run on fake tensors, nor for real here."""
    obstacle: Obstacle | None
    """None where there is a trace."""
    sizes: Sizes | None

    @property
    def settled_sizes(self) -> BatchSizes | None:
        """The batch sizes, of a schedule those of its first stage; None while `micro_batch_size: max` leaves them
        open."""
        found = batch_sizes(self.config)
        return found if isinstance(found, BatchSizes) else None

    @property
    def micro_batch(self) -> int | None:
        """Samples of one forward pass of one rank; None while it is open."""
        return self.settled_sizes.micro_batch_size if self.settled_sizes else None

    @cached_property
    def whole_batch(self) -> Any | None:
        """A micro-batch as large as in training, in random order; None where that takes much time or memory.

        Raises:
            CollationFailed: the samples do not make such a batch.
            Exception: of the user's data.
        """
        if self.batches is None or not may_be_loaded_whole(self.config, self.batches):
            return None
        return micro_batch(self.config, self.batches.datasets)

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step; of a schedule, the most."""
        return largest_sizes(self.config).global_batch_size

    @property
    def growth(self) -> float:
        """The global batch over the one that the learning rate was chosen for."""
        return self.global_batch / self.config.optimizer.base_batch_size

    @property
    def workers(self) -> int:
        """Training processes."""
        return max(self.config.scaling.num_workers, 1)

    @property
    def may_use_gpu(self) -> bool:
        """True if the config lets it train on GPUs, here or on a cluster."""
        return self.config.scaling.use_gpu is not False

    @property
    def is_16_bit(self) -> bool:
        """True if matrix products are computed in 16 bits."""
        return self.config.trainer.precision in ("16-mixed", "bf16-mixed")

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole training, where it is known."""
        if self.sizes is None:
            return self.config.trainer.max_steps
        if (schedule := schedule_of(self.config)) is not None:
            steps = ScheduledSteps(schedule, self.sizes.train, self.config.data.drop_last)
            return steps.end(self.config.trainer).step
        each = epoch_steps(self.sizes.train, self.global_batch, self.config.data.drop_last)
        return training_steps(self.config.trainer, each)

    def modules(self, *kinds: type[nn.Module]) -> Iterator[tuple[str, Any]]:
        """Name and module of each that is of one of `kinds`, or of a class derived from it."""
        yield from ((name, module) for name, module in self.task.named_modules() if isinstance(module, kinds))
