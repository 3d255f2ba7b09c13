"""AdaScale SGD (Johnson et al. 2020, arXiv:2007.05105): a learning rate that follows the batch as far as noise allows.

With B the global batch size, B0 the one that the base learning rate was chosen for, and S = B/B0, each step's learning
rate is the base one times the schedule times the gain

    r = (v/B0 + m) / (v/B + m),        1 <= r <= S   (S <= r <= 1 where S < 1)

where m is the squared norm of the expected gradient and v the variance of one sample's gradient, summed over its
entries. If noise dominates, r is S, as in the linear rule; where there is none, r is 1.

Unlike in the paper, the schedule and the length of training count steps, not the gains: Paceline's budgets are in
samples, and runs are compared at equal ones. The short last batch of an epoch takes the gain of a full one.
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name
from torch.optim import Optimizer

from paceline._compat.torch import foreach_add_, foreach_norm
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import StepStats
from paceline.engine.lr_policy import LRPolicy
from paceline.lr_schedulers.base import Schedule

Weight = float | Tensor
"""What a sum of losses is divided by for its mean: samples, or tokens that count; a number here or on the device."""

SMOOTHING_SCALE = 1000
"""The averages' decay is 1 - S/1000, as in the paper."""


class RankParts:
    """One part a rank, seen when DDP exchanges it."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(parameters)}
        self._norms: dict[int, Tensor] = {}

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients."""
        norms = foreach_norm(bucket.gradients())
        for parameter, norm in zip(bucket.parameters(), norms, strict=True):
            self._norms[self._numbers[parameter]] = norm

    def take(self, weights: list[Weight]) -> list[tuple[Tensor, Weight]]:
        """Squared norm and weight of the rank's gradient, nothing where it has no sample; starts again.

        Args:
            weights: of the rank's micro batches that count.
        """
        # in the order of the parameters: that of the buckets changes when a run is resumed, and so would the last bits
        norms = [self._norms[number] for number in sorted(self._norms)]
        self._norms = {}
        return [(_sum_of_squares(norms), sum(weights))] if weights else []


class MicroBatchParts:
    """One part a micro batch of the only process. Keeps a second copy of the gradients during a step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._squares: list[Tensor] = []
        self._sums: dict[nn.Parameter, Tensor] = {}

    def end_micro_batch(self, is_last: bool) -> None:
        """Set the gradients of a micro batch aside; after the last one, give the parameters the sums."""
        gradients = {p: p.grad for p in self._parameters if p.grad is not None}
        self._squares.append(_sum_of_squares(foreach_norm(list(gradients.values()))))
        added = [parameter for parameter in gradients if parameter in self._sums]
        if added:
            foreach_add_([self._sums[p] for p in added], [gradients[p] for p in added])
        self._sums = {**gradients, **self._sums}
        for parameter in self._parameters:
            parameter.grad = self._sums.get(parameter) if is_last else None
        if is_last:
            self._sums = {}

    def take(self, weights: list[Weight]) -> list[tuple[Tensor, Weight]]:
        """Squared norm and weight of each micro batch's gradient; starts again.

        Args:
            weights: of the micro batches.
        """
        squares, self._squares = self._squares, []
        return list(zip(squares, weights, strict=True))


class _Numbers(NamedTuple):
    """What is read from the device at each step, of all ranks together; norms are of scaled gradients."""

    squares_by_weight: float
    """Sum over the parts of squared norm / weight."""
    parts: float
    """Those with a weight above 0."""
    weight: float
    square: float
    """Squared norm of the mean gradient."""
    loss_scale: float


class AdaScale:
    """The gain of each step, from running averages of m and v. Reads five numbers from the device at each step.

    With h_k the gradient of the sum of losses of part k, w_k its weight, W the sum of the K weights and g = sum(h_k)/W,

        v_W = (sum |h_k|^2 / w_k - W |g|^2) / (K - 1),        m = |g|^2 - v_W / W

    are unbiased, whatever the weights (the variance between groups of one-way ANOVA; with equal weights the paper's
    estimators). v_W is the variance for a weight of 1, which times samples / W makes that of one sample.
    """

    def __init__(
        self, parameters: list[nn.Parameter], base_batch_size: int, global_batch_size: int, ranks: DistContext
    ) -> None:
        self._parameters = parameters
        self._base = base_batch_size
        self._batch = global_batch_size
        self._ranks = ranks
        self._decay = max(1 - self._batch / self._base / SMOOTHING_SCALE, 0.0)
        self.parts: RankParts | MicroBatchParts = (
            RankParts(parameters) if ranks.world_size > 1 else MicroBatchParts(parameters)
        )
        """Where the parts of a step's gradient are seen."""
        self.device = ranks.device
        self._square = 0.0
        self._variance = 0.0
        self._steps = 0

    @property
    def gain(self) -> float:
        """What the base learning rate is multiplied by; 1 until something has been measured."""
        square, variance = max(self._square, 0.0), max(self._variance, 0.0)
        below = variance / self._batch + square
        gain = (variance / self._base + square) / below if below > 0 else 1.0
        lowest, highest = sorted((1.0, self._batch / self._base))
        return min(max(gain, lowest), highest)

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients, before it is averaged."""
        if isinstance(self.parts, RankParts):
            self.parts.see_bucket(bucket)

    def end_micro_batch(self, is_last: bool) -> None:
        """Take in a micro batch's gradients, after its backward pass; `is_last` of the step."""
        if isinstance(self.parts, MicroBatchParts):
            self.parts.end_micro_batch(is_last)

    @torch.no_grad()
    def measure(self, samples: int, weights: list[Weight], loss_scale: Tensor, weight_per_sample: float = 1.0) -> float:
        """Take in the step whose gradients, divided by the whole weight, the parameters hold. Every rank must call it.

        A step whose gradients are not finite, or in which fewer than two parts count, leaves the averages as they are.

        Args:
            samples: of the global batch.
            weights: of this rank's micro batches that count.
            loss_scale: what all gradients are multiplied by: float, shape [].
            weight_per_sample: what the parts' gradients were divided by, beside the number of samples.

        Returns:
            The gain.
        """
        numbers = self._read(weights, loss_scale)
        if numbers.parts >= 2 and all(isfinite(number) for number in numbers):
            self._average(samples, numbers, weight_per_sample)
        return self.gain

    def state_dict(self) -> dict[str, float]:
        """The averages, as JSON values."""
        return {"square": self._square, "variance": self._variance, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the averages."""
        self._square, self._variance, self._steps = state["square"], state["variance"], state["steps"]

    def _read(self, weights: list[Weight], loss_scale: Tensor) -> _Numbers:
        device = self._ranks.device
        mine = torch.zeros(4, dtype=torch.float64, device=device)
        for square, weight in self.parts.take(weights):
            weight = torch.zeros_like(square) + weight
            counts = weight > 0
            mine[:3] += torch.stack([torch.where(counts, square / weight, 0.0), counts.to(weight), weight])
        if self._ranks.is_first:  # one rank's alone, so that all of them compute with the same bits
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            mine[3] = _sum_of_squares(foreach_norm(gradients))
        together = self._ranks.sum(mine)
        return _Numbers(*torch.cat([together, loss_scale.detach().reshape(1).to(together)]).tolist())

    def _average(self, samples: int, numbers: _Numbers, weight_per_sample: float) -> None:
        weight = numbers.weight
        # DDP's factor, that of the samples (see `LocalForwardBackward`) and fp16's
        factor = samples * weight_per_sample / self._ranks.world_size / numbers.loss_scale
        square = numbers.square / numbers.loss_scale**2
        between = (numbers.squares_by_weight * factor**2 - weight * square) / (numbers.parts - 1)
        self._steps += 1
        # the mean of all steps at first, so that the start value has no weight
        decay = min(self._decay, 1 - 1 / self._steps)
        self._square += (1 - decay) * (square - between / weight - self._square)
        self._variance += (1 - decay) * (between * samples / weight - self._variance)


class AdaScaleLR(LRPolicy):
    """The scheduled learning rate times AdaScale's gain.

    Args:
        gradient_scale: multiplies a loss by the factor that fp16's gradients carry.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        peak_lr: float,
        schedule: Schedule,
        adascale: AdaScale,
        gradient_scale: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(optimizer, peak_lr, schedule)
        self.adascale = adascale
        self._gradient_scale = gradient_scale

    def lr(self, step: int, stats: StepStats) -> float:
        """The learning rate of an optimizer step, after its gain was measured."""
        one = torch.ones((), device=self.adascale.device)
        scale = self._gradient_scale(one)
        gain = self.adascale.measure(stats.samples, stats.weights, scale, stats.weight_per_sample)
        return super().lr(step, stats) * gain

    def metrics(self) -> dict[str, float]:
        """Metrics for the log."""
        return {**super().metrics(), "adascale_gain": self.adascale.gain}


def _sum_of_squares(norms: Iterable[Tensor]) -> Tensor:
    """float64, shape []."""
    return torch.stack(list(norms)).to(torch.float64).square().sum()
