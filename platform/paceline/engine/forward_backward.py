"""Forward and backward over the micro batches of one optimizer step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from paceline._compat.torch import foreach_mul_, run_backward
from paceline.engine.comm_hooks import GradientObserver
from paceline.engine.ddp import gradient_exchange
from paceline.engine.dist_context import DistContext
from paceline.engine.layout import Replicated
from paceline.engine.monitoring.own_time import NOT_TIMED, OwnTime
from paceline.engine.order import MicroBatch
from paceline.engine.output_checks import checked_output, require_gradient
from paceline.engine.precision import Precision
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.engine.weight_scale import WeightScale
from paceline.tasks.base import TaskOutput

Batches = Iterator[tuple[MicroBatch, Any]]


class StepStats(NamedTuple):
    """The data of one optimizer step."""

    samples: int
    """Samples of the global batch."""
    weights: list[float | torch.Tensor]
    """`TaskOutput.weight` of each of this rank's micro-batches that counts."""
    ends_epoch: bool = False
    """True for the last step of an epoch."""
    weight_per_sample: float = 1.0
    """The gradients are divided by this already; see `WeightScale`."""


class ForwardBackward(Protocol):
    """Forward and backward over the micro batches of a step.

    Afterwards the gradients are those of the global batch's loss sum, divided by its number of samples and by
    `StepStats.weight_per_sample`.
    """

    def __call__(self, batches: Batches, step: int) -> StepStats:
        """Take the micro batches of one step from `batches`. Every rank must call it."""


class LocalForwardBackward:
    """One micro batch after the other through a model that is whole on every rank, or is put together on its way."""

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        ranks: DistContext,
        running: RunningLoss,
        seeds: StepSeeds,
        observer: GradientObserver | None = None,
        own_time: OwnTime | None = None,
        forward_is_own: bool = True,
    ) -> None:
        """Args:
        own_time: runs while this rank does not wait for others.
        forward_is_own: a forward pass waits for nobody; else only the loading of the data is the rank's own.
        """
        self.model = model
        self._precision = precision
        self._ranks = ranks
        self._running = running
        self._seeds = seeds
        self._exchange = gradient_exchange(model)
        self._observer = observer
        self._own_time = own_time or NOT_TIMED
        self._forward_is_own = forward_is_own
        self.weight_scale: WeightScale | None = None
        """Set where weights are not numbers of samples."""
        self.before_exchange: Callable[[], None] | None = None
        """Called before each step's last backward pass, in which gradients are exchanged; the loss is complete then."""
        self._weight_per_sample = 1.0
        self._loss_gradients: dict[tuple[int, float, bool, torch.dtype], torch.Tensor] = {}

    def __call__(self, batches: Batches, step: int) -> StepStats:
        """Take the micro batches of one step from `batches`."""
        weights = []
        own_time = self._own_time
        own_time.start()
        for index, (micro_batch, batch) in enumerate(batches):
            self._seeds.apply(step, index)
            if not self._forward_is_own:
                own_time.stop()
            if self._exchange is None:
                output = self._pass(micro_batch, batch)
            else:
                with self._exchange(micro_batch.is_last):
                    output = self._pass(micro_batch, batch)
            if self._observer is not None:
                self._observer.end_micro_batch(micro_batch.is_last)
            if micro_batch.counts:
                weights.append(output.weight)
            if micro_batch.is_last:
                break
            own_time.start()
        return StepStats(micro_batch.step_samples, weights, micro_batch.ends_epoch, self._weight_per_sample)

    def _pass(self, micro_batch: MicroBatch, batch: Any) -> TaskOutput:
        output = self.forward(batch)
        require_gradient(output.loss_sum)
        loss = self._precision.scale(output.loss_sum)
        if self.weight_scale is not None:
            self._weight_per_sample = self.weight_scale.value(output, micro_batch.ids.numel())
        if micro_batch.counts:
            self._running.add(output)
        if micro_batch.is_last:
            self._own_time.stop()  # from here on gradients are exchanged
            self._own_time.end_step()
            if self.before_exchange is not None:
                self.before_exchange()
        self.backward(loss, self._loss_gradient(micro_batch, loss.dtype))
        return output

    def forward(self, batch: Any) -> TaskOutput:
        """The model's output for one micro batch."""
        if self._precision.mixed_dtype is None:
            return checked_output(self.model(batch))
        with self._precision.autocast():
            return checked_output(self.model(batch))

    def backward(self, loss: torch.Tensor, gradient: torch.Tensor) -> None:
        """From the loss of one micro batch to the parameters' gradients.

        Args:
            gradient: the loss's own.
        """
        run_backward(loss, gradient)

    def _loss_factor(self, micro_batch: MicroBatch) -> float:
        """Makes the sum of the micro batches' gradients that of the global batch's mean loss: DDP's mean undone."""
        samples = micro_batch.step_samples * self._weight_per_sample
        return self._ranks.world_size / samples if micro_batch.counts else 0.0

    def _loss_gradient(self, micro_batch: MicroBatch, dtype: torch.dtype) -> torch.Tensor:
        # The factor enters as the gradient of the loss, which saves a multiplication forward and backward.
        key = micro_batch.step_samples, self._weight_per_sample, micro_batch.counts, dtype
        gradient = self._loss_gradients.get(key)
        if gradient is None:
            factor = self._loss_factor(micro_batch)
            gradient = self._loss_gradients[key] = torch.tensor(factor, dtype=dtype, device=self._ranks.device)
        return gradient


def divide_by_weight(
    done: StepStats, parameters: Iterable[nn.Parameter], layout: Replicated, ranks: DistContext
) -> None:
    """Make the gradient that of the mean over the weights, which are not numbers of samples. Every rank must call it.

    It is over the number of samples, times an estimate of their weight, so far: what it is to be over is known only
    after the last micro batch.
    """
    mine = torch.zeros((), dtype=torch.float64, device=ranks.device) + sum(done.weights)
    total = ranks.sum(mine)
    factor = torch.where(total > 0, done.samples * done.weight_per_sample / total, 0.0)
    gradients = [layout.local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    foreach_mul_(gradients, factor.to(gradients[0].dtype))
