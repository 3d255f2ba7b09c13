"""Evaluation: sharded over the ranks, every sample counted exactly once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from paceline.callbacks.callback import Callback, TrainContext, overrides
from paceline.engine.loading import BatchLoader
from paceline.engine.loop_context import LoopContext
from paceline.engine.meter import Meter
from paceline.engine.order import evaluation_order
from paceline.engine.plan import TrainPlan
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.state import TrainState
from paceline.engine.strategy import Strategy
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


class Evaluator(Callback):
    """Evaluates the validation sets after the steps that the plan says, and where `is_wanted` says so.

    Args:
        loaders: of each validation set, by its name in the metrics' names; empty text for the only one.
        is_wanted: asked after each step; the same answer on all ranks.
        shown_name: what a metric of the task is called in what is reported: its name may hold a secret.
        callbacks: their `evaluation_context` is entered.
    """

    def __init__(
        self,
        state: TrainState,
        loaders: Mapping[str, BatchLoader],
        plan: TrainPlan,
        strategy: Strategy,
        micro_batch_size: int,
        epochs: Callable[[int], float],
        meter: Meter,
        is_wanted: Callable[[], bool],
        shown_name: Callable[[str], str] = str,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.loaders = loaders
        self._shown_name = shown_name
        self._state = state
        self._plan = plan
        self._strategy = strategy
        self._micro_batch_size = micro_batch_size
        self._epochs = epochs
        self._meter = meter
        self._is_wanted = is_wanted
        self._contexts = [callback for callback in callbacks if overrides(callback, "evaluation_context")]
        self._evaluated_step = -1

    def on_step_end(self, ctx: TrainContext) -> None:
        """Evaluate, if an evaluation is due."""
        if self._plan.evaluates(self._state.position) or self._is_wanted():
            self._evaluate(ctx)

    def on_train_end(self, ctx: TrainContext) -> None:
        """Evaluate the final weights of a run that a callback has stopped between two evaluations."""
        if self._state.is_stopped_early and self._evaluated_step != self._state.position.step:
            self._evaluate(ctx)

    def close(self) -> None:
        """End the loader processes."""
        for loader in self.loaders.values():
            loader.close()

    def _evaluate(self, ctx: TrainContext) -> None:
        assert isinstance(ctx, LoopContext)
        self._evaluated_step = self._state.position.step
        with self._meter.excluded("evaluation"), ExitStack() as stack:
            for callback in self._contexts:
                stack.enter_context(callback.evaluation_context(ctx))
            metrics = {
                f"val/{f'{name}/' if name else ''}{self._shown_name(key)}": value
                for name, loader in self.loaders.items()
                for key, value in self._evaluate_set(loader).items()
            }
        ctx.evaluation = metrics
        for key, value in metrics.items():
            ctx.log(key, value)
        if metrics:
            ctx.log("validation_epoch", self._epochs(self._state.position.samples))

    def _evaluate_set(self, loader: BatchLoader) -> dict[str, float]:
        return evaluate(self._state.task, loader, self._micro_batch_size, self._state.precision, self._strategy)


@torch.no_grad()
def evaluate(
    task: Task, loader: BatchLoader, micro_batch_size: int, precision: Precision, strategy: Strategy
) -> dict[str, float]:
    """Metrics over a whole set, equal on all ranks. Every rank must call it.

    The task is called without its DDP wrapper. All ranks take equally many batches, the missing ones as padding that
    does not count, since a model may communicate in its forward pass.
    """
    ranks = strategy.data_ranks
    totals = _Totals(strategy.ranks)
    # BatchNorm's statistics are each rank's own until DDP's next forward; what is saved and evaluated is rank 0's
    ranks.share_first(buffer for buffer in task.buffers() if strategy.layout.holds(buffer))
    order = evaluation_order(len(loader.fetcher), micro_batch_size, ranks.rank, ranks.world_size, is_lockstep=True)
    with _evaluating(task):
        for micro_batch, batch in loader.load(0, order):
            with precision.autocast():
                output = strategy.evaluate(task, batch)
            if output is not None and micro_batch.counts:
                totals.add(output)
    return totals.means()


@contextmanager
def _evaluating(task: Task) -> Iterator[None]:
    was_training = task.training
    task.eval()
    try:
        yield
    finally:
        task.train(was_training)


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
