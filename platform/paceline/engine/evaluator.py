"""Evaluation: sharded over the ranks, every sample counted exactly once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch.optim import Optimizer

from paceline.callbacks.callback import Callback, TrainContext, overrides
from paceline.callbacks.metric_monitor import MetricMonitor
from paceline.engine.dist_context import DistContext
from paceline.engine.evaluation_metrics import EvaluationMetrics
from paceline.engine.loading import BatchLoader
from paceline.engine.loop_context import LoopContext, PlannedCallback
from paceline.engine.meter import Meter
from paceline.engine.order import MicroBatch, evaluation_order
from paceline.engine.output_checks import metric_mapping, metric_number
from paceline.engine.plan import TrainPlan
from paceline.engine.precision import Precision
from paceline.engine.state import TrainState
from paceline.engine.strategy import Strategy
from paceline.errors import UnusableCode
from paceline.optimizers._modes import evaluation_weights
from paceline.redaction import HIDDEN
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

WEIGHT = "weight"
"""Name of the sum of weights among the sums that `Task.compute` is given."""


class Evaluator(PlannedCallback):
    """Evaluates the validation sets after the steps of the plan, and whenever `is_wanted` returns True.

    Args:
        loaders: loader of each validation set, by its name in the metrics' names; empty text for the only one.
        is_wanted: called after each step; must return the same on all ranks.
        metrics: metrics of the config; None if it has none.
        shown_name: maps the name of a task's metric to the name that is reported: the name may hold a secret.
        callbacks: their `evaluation_context` is entered, and the metrics that they monitor must exist.
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
        metrics: EvaluationMetrics | None = None,
        shown_name: Callable[[str], str] = str,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.loaders = loaders
        self._metrics = metrics
        self._shown_name = shown_name
        self._state = state
        self._plan = plan
        self._strategy = strategy
        self._micro_batch_size = micro_batch_size
        self._epochs = epochs
        self._meter = meter
        self._is_wanted = is_wanted
        self._contexts = [callback for callback in callbacks if overrides(callback, "evaluation_context")]
        self._monitors = [callback for callback in callbacks if isinstance(callback, MetricMonitor)]
        self._evaluated_step = -1
        self._has_warned = False

    def on_train_start(self, ctx: TrainContext) -> None:
        """Refuse to monitor a metric of an empty validation set."""
        if not any(len(loader.fetcher) for loader in self.loaders.values()):
            self._require_monitored({})

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
        with self._meter.excluded("evaluation"), weights_for_evaluation(self._state.optimizer, self._contexts, ctx):
            metrics = {
                f"val/{f'{name}/' if name else ''}{self._shown_name(key).replace(HIDDEN, 'hidden')}": value
                for name, loader in self.loaders.items()
                for key, value in self._evaluate_set(loader).items()
            }
        if not metrics:
            self._require_monitored(metrics)
            self._warn_of_no_metrics(ctx)
        ctx.evaluation = metrics
        for key, value in metrics.items():
            ctx.log(key, value)
        if metrics:
            ctx.log("validation_epoch", self._epochs(self._state.position.samples))

    def _warn_of_no_metrics(self, ctx: LoopContext) -> None:
        if not self._has_warned and any(len(loader.fetcher) for loader in self.loaders.values()):
            self._has_warned = True
            ctx.warn("no-metrics", "the evaluation gave no metric: the task returned no loss and no metrics")

    def _require_monitored(self, metrics: Mapping[str, float]) -> None:
        for monitor in self._monitors:
            monitor.monitored(metrics)

    def _evaluate_set(self, loader: BatchLoader) -> dict[str, float]:
        return evaluate(
            self._state.task, loader, self._micro_batch_size, self._state.precision, self._strategy, self._metrics
        )


@contextmanager
def weights_for_evaluation(optimizer: Optimizer, callbacks: Sequence[Callback], ctx: TrainContext) -> Iterator[None]:
    """Put the weights for evaluation, such as averaged ones, into the model; restore those of training afterwards.

    Args:
        callbacks: callbacks with an `evaluation_context`.
    """
    with ExitStack() as stack:
        stack.enter_context(evaluation_weights(optimizer))
        for callback in callbacks:
            stack.enter_context(callback.evaluation_context(ctx))
        yield


@torch.no_grad()
def evaluate(
    task: Task,
    loader: BatchLoader,
    micro_batch_size: int,
    precision: Precision,
    strategy: Strategy,
    metrics: EvaluationMetrics | None = None,
) -> dict[str, float]:
    """Return the metrics of a whole set, equal on all ranks. Every rank must call it."""
    totals = _Totals(strategy.ranks)
    for _, output in outputs(task, loader, micro_batch_size, precision, strategy):
        totals.add(output)
        if metrics is not None:
            metrics.add(output)
    sums = totals.reduced()
    if not sums[WEIGHT]:
        return {}
    computed = metric_mapping(task.compute(sums), "Task.compute")
    means = {str(name): metric_number(name, value, "Task.compute") for name, value in computed.items()}
    if metrics is None:
        return means
    metrics.require_new(means)
    return {**means, **metrics.compute()}


@torch.no_grad()
def outputs(
    task: Task, loader: BatchLoader, micro_batch_size: int, precision: Precision, strategy: Strategy
) -> Iterator[tuple[MicroBatch, TaskOutput]]:
    """Yield the micro-batches and task outputs of this rank's part of a set, in the order of the set.

    The parts of the ranks are in order of rank. Every rank must exhaust it. The task is called without its DDP wrapper.
    All ranks run equally many batches, since a model may communicate in its forward pass. Padding batches are not
    yielded.
    """
    ranks = strategy.data_ranks
    # BatchNorm's statistics differ between ranks until DDP's next forward; those of rank 0 are saved and evaluated
    ranks.share_first(buffer for buffer in task.buffers() if strategy.layout.holds(buffer))
    order = evaluation_order(len(loader.fetcher), micro_batch_size, ranks.rank, ranks.world_size, is_lockstep=True)
    with _evaluating(task):
        for micro_batch, batch in loader.load(0, order):
            task.counts = micro_batch.counts
            with precision.autocast():
                output = strategy.evaluate(task, batch)
            if output is not None and micro_batch.counts:
                yield micro_batch, output
    strategy.layout.reshard(task)  # a callback may put other weights in their place now


@contextmanager
def _evaluating(task: Task) -> Iterator[None]:
    was_training = task.training
    task.eval()
    try:
        yield
    finally:
        task.counts = True
        task.train(was_training)


class _Totals:
    """Sums of loss, weight and each metric: float64, on the device."""

    def __init__(self, ranks: DistContext) -> None:
        self.ranks = ranks
        self.sums: dict[str, torch.Tensor] = {WEIGHT: torch.zeros((), dtype=torch.float64, device=ranks.device)}

    def add(self, output: TaskOutput) -> None:
        metrics = {str(name): value for name, value in metric_mapping(output.metrics, "TaskOutput.metrics").items()}
        if WEIGHT in metrics:
            raise UnusableCode(
                "TaskOutput.metrics has a metric named 'weight', which is the name of the sum of weights. Rename it",
                "reserved-metric",
            )
        for name, value in {WEIGHT: output.weight, "loss": output.loss_sum, **metrics}.items():
            mine = self._float64(name, value)
            if name in self.sums and self.sums[name].shape != mine.shape:
                raise _shapes_differ(name, self.sums[name].shape, mine.shape)
            self.sums[name] = self.sums[name] + mine if name in self.sums else mine

    def reduced(self) -> dict[str, torch.Tensor]:
        """Return the sums over all ranks, by name; a rank without a batch adds zeros. Every rank must call it.

        Raises:
            UnusableCode: the ranks have metrics of one name in different shapes.
        """
        found = self.ranks.union((name, *each.shape) for name, each in self.sums.items())
        shapes = {str(name): torch.Size(shape) for name, *shape in found}
        for name, *shape in found:
            if shapes[name] != torch.Size(shape):
                raise _shapes_differ(name, shapes[name], torch.Size(shape))
        zero = torch.zeros_like(self.sums[WEIGHT])
        mine = [self.sums.get(name, zero.expand(shape)).reshape(-1) for name, shape in shapes.items()]
        parts = torch.split(self.ranks.sum(torch.cat(mine)), [shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def _float64(self, name: str, value: float | torch.Tensor) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.detach().to(self.ranks.device, torch.float64)
        return torch.full(
            (), metric_number(name, value, "TaskOutput.metrics"), dtype=torch.float64, device=self.ranks.device
        )


def _shapes_differ(name: str, one: torch.Size, other: torch.Size) -> UnusableCode:
    return UnusableCode(
        f"the metric {name!r} has shape {list(one)} for one batch and {list(other)} for another, so the two cannot be "
        "summed. Give it the same shape for every batch",
        "metric-shape",
        metric=name,
        shapes=[list(one), list(other)],
    )
