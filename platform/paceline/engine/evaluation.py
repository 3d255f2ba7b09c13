"""Evaluation: sharded over the ranks, every sample counted exactly once."""

import torch

from paceline.engine.loading import BatchLoader
from paceline.engine.order import evaluation_order
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.strategy import Strategy
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


@torch.no_grad()
def evaluate(
    task: Task, loader: BatchLoader, micro_batch_size: int, precision: Precision, strategy: Strategy
) -> dict[str, float]:
    """Mean loss and metrics over the whole validation set, equal on all ranks. Every rank must call it.

    The task is called without its DDP wrapper: ranks may have different numbers of batches, or none.
    """
    ranks = strategy.data_ranks
    totals = _Totals(strategy.ranks)
    # BatchNorm's statistics are each rank's own until DDP's next forward; what is saved and evaluated is rank 0's
    ranks.share_first(buffer for buffer in task.buffers() if strategy.layout.holds(buffer))
    was_training = task.training
    task.eval()
    try:
        samples, in_lockstep = len(loader.fetcher), strategy.layout.is_sliced
        order = evaluation_order(samples, micro_batch_size, ranks.rank, ranks.world_size, in_lockstep)
        for micro_batch, batch in loader.load(0, order):
            with precision.autocast():
                output = strategy.evaluate(task, batch)
            if output is not None and micro_batch.counts:
                totals.add(output)
    finally:
        task.train(was_training)
    return totals.means()


class _Totals:
    """Sums of loss, weight and each metric. Ranks agree on the metrics' names even when one had no batch."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.sums: dict[str, torch.Tensor] = {}
        self.weight = torch.zeros((), dtype=torch.float64, device=ranks.device)

    def add(self, output: TaskOutput) -> None:
        self.weight += output.weight
        for key, value in {"loss": output.loss_sum, **output.metrics}.items():
            self.sums[key] = self.sums.get(key, 0) + value.detach().to(torch.float64)

    def means(self) -> dict[str, float]:
        keys = self.ranks.union(self.sums)
        zero = torch.zeros_like(self.weight)
        packed = torch.stack([self.weight, *(self.sums.get(key, zero) for key in keys)])
        weight, *sums = self.ranks.sum(packed).tolist()
        return {key: value / weight for key, value in zip(keys, sums, strict=True)} if weight else {}
