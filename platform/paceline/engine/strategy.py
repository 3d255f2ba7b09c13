"""Distribution of the work over the ranks: the samples and the part of the model that each rank gets."""

from collections.abc import Callable
from math import isnan
from typing import Any

from torch import nn

from paceline.config.sections import ParallelConfig
from paceline.engine.comm_hooks import GradientObserver
from paceline.engine.data_parallel import apply_data_parallel
from paceline.engine.ddp import apply_ddp, communicates
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import ForwardBackward, LocalForwardBackward
from paceline.engine.layout import Replicated
from paceline.engine.monitoring.own_time import own_time
from paceline.engine.output_checks import checked_output
from paceline.engine.precision import Precision
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


class Strategy:
    """`ddp`, and one process alone: every rank has the whole model and samples of its own."""

    def __init__(self, parallel: ParallelConfig, ranks: DistContext) -> None:
        self.parallel = parallel
        self.ranks = ranks
        self.data_ranks = ranks
        """This rank's place among the ranks that get different samples."""
        self.layout = Replicated()
        """Layout of the training state over the ranks."""
        self.own_time = own_time(ranks.device, ranks.world_size)
        """Clock that runs while this rank does not wait for others."""
        self.moves_to_device = False
        """True if `distribute` itself moves the task to the device, part by part, since the whole may not fit."""

    def distribute(self, task: Task, precision: Precision) -> nn.Module:
        """Distribute a task that is the same on all ranks, and return the module that the training step calls.

        Every rank must call it.
        """
        if not task.automatic_optimization:  # its gradients are averaged at each optimizer's step
            self.ranks.share_first([each.detach() for each in (*task.parameters(), *task.buffers())])
            return task
        return apply_ddp(task, self.parallel, self.ranks, self.own_time)

    def forward_backward(
        self,
        model: nn.Module,
        precision: Precision,
        running: RunningLoss,
        seeds_of: Callable[[DistContext], StepSeeds],
        observer: GradientObserver | None,
    ) -> ForwardBackward:
        """Return the pass over the micro batches of a step, through the module that `distribute` returned."""
        is_own = not (self.layout.is_sliced or communicates(model))
        seeds = seeds_of(self.ranks)
        return LocalForwardBackward(model, precision, self.ranks, running, seeds, observer, self.own_time, is_own)

    def evaluate(self, task: Task, batch: Any) -> TaskOutput | None:
        """Return the task's output in evaluation; None if another rank of the same pipeline has it."""
        return checked_output(task(batch))


class ReplicasInProcess(Strategy):
    """`data_parallel`: one rank, which spreads each micro batch over its GPUs."""

    def distribute(self, task: Task, precision: Precision) -> nn.Module:
        """Return the task, spread over all GPUs of this process."""
        return apply_data_parallel(task, self.ranks.device)


class FullySharded(Strategy):
    """`fsdp`: every rank has samples of its own, and a slice of each weight."""

    def __init__(self, parallel: ParallelConfig, ranks: DistContext) -> None:
        from paceline.engine.fsdp import Sharded

        super().__init__(parallel, ranks)
        self.layout = Sharded(ranks.is_first)
        self.moves_to_device = True

    def distribute(self, task: Task, precision: Precision) -> nn.Module:
        """Shard the task in place, and return it."""
        from paceline.engine.fsdp import apply_fsdp

        require_same_start(task, self.ranks)
        gather_dtype = precision.mixed_dtype if self.parallel.gather_dtype == "mixed" else None
        return apply_fsdp(task, self.parallel, self.ranks, gather_dtype)


def require_same_start(task: Task, ranks: DistContext) -> None:
    """Check that all ranks have built the same weights, before each keeps only its own part of them.

    Raises:
        UnusableCode: the weights differ.
    """
    total = sum(float(tensor.detach().double().sum()) for tensor in task.state_dict().values())
    totals = {number for (number,) in ranks.gather_numbers([total])}
    if len(totals) > 1 and not any(map(isnan, totals)):
        raise UnusableCode(
            "the workers have built models with different weights: torch's, numpy's and Python's own random generators "
            "are seeded alike before, any other has to be seeded by the model's code",
            "different-initial-weights",
        )
