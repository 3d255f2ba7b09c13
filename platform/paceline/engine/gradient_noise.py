"""Variance and squared norm of a step's gradient, from the parts that it is the mean of: one per rank or micro-batch.

With h_k the gradient of the sum of losses of part k, w_k its weight, W the sum of the K weights and g = sum(h_k)/W,

    v_W = (sum |h_k|^2 / w_k - W |g|^2) / (K - 1),        m = |g|^2 - v_W / W

are unbiased estimates of the variance of the gradient for a weight of 1, summed over its entries, and of the squared
norm of the expected gradient, whatever the weights (the variance between groups of one-way ANOVA; with equal weights
those of Johnson et al. 2020, arXiv:2007.05105, and McCandlish et al. 2018, arXiv:1812.06162). v_W times samples / W is
the variance of one sample's gradient.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name

from paceline._compat.torch import foreach_add_, foreach_norm
from paceline.engine.dist_context import DistContext

Weight = float | Tensor
"""Divisor that turns a sum of losses into their mean: the number of samples, or of tokens that count.

A Python number, or a tensor on the device.
"""
Norms = Sequence[Tensor]
"""Norm of the gradient of each parameter, 0 for one that has none: float, shape []."""


class RankParts:
    """One part per rank, taken in when DDP exchanges it."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(parameters)}
        self._norms: dict[int, Tensor] = {}
        self._zero = torch.zeros((), device=parameters[0].device)

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients."""
        norms = foreach_norm(bucket.gradients())
        for parameter, norm in zip(bucket.parameters(), norms, strict=True):
            self._norms[self._numbers[parameter]] = norm

    def take(self, weights: list[Weight]) -> list[tuple[Norms, Weight]]:
        """Return norms and weight of the rank's gradient, and reset. Empty if the rank has no sample.

        Args:
            weights: weights of the rank's micro batches that count.
        """
        # in order of the parameters: the order of the buckets changes when a run is resumed, and so would the last bits
        norms = [self._norms.get(number, self._zero) for number in range(len(self._numbers))]
        self._norms = {}
        return [(norms, sum(weights))] if weights else []


class MicroBatchParts:
    """One part per micro batch of the only process. Keeps a second copy of the gradients during a step."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._norms: list[Norms] = []
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._zero = torch.zeros((), device=parameters[0].device)

    def end_micro_batch(self, is_last: bool) -> None:
        """Set the gradients of a micro batch aside; after the last one, give the parameters the sums."""
        self._norms.append(_norms_of(self._parameters, self._zero))
        gradients = {p: p.grad for p in self._parameters if p.grad is not None}
        added = [parameter for parameter in gradients if parameter in self._sums]
        if added:
            foreach_add_([self._sums[p] for p in added], [gradients[p] for p in added])
        self._sums = {**gradients, **self._sums}
        for parameter in self._parameters:
            parameter.grad = self._sums.get(parameter) if is_last else None
        if is_last:
            self._sums = {}

    def take(self, weights: list[Weight]) -> list[tuple[Norms, Weight]]:
        """Return norms and weight of each micro batch's gradient, and reset.

        Args:
            weights: weights of the micro batches.
        """
        norms, self._norms = self._norms, []
        return list(zip(norms, weights, strict=True))


class Moments(NamedTuple):
    """Estimates from one step."""

    square: float
    """m: squared norm of the expected gradient; may be negative."""
    variance: float
    """Variance of one sample's gradient, summed over its entries."""


class StepNumbers(NamedTuple):
    """Statistics of a step's gradient over all ranks; norms are of scaled gradients."""

    squares_by_weight: float
    """Sum over the parts of squared norm / weight."""
    parts: float
    """Number of parts with a weight above 0."""
    weight: float
    square: float
    """Squared norm of the mean gradient."""
    loss_scale: float

    def moments(self, samples: int, world_size: int, weight_per_sample: float) -> Moments | None:
        """Return the estimates; None where fewer than two parts count, or a gradient is not finite.

        Args:
            samples: number of samples in the global batch.
            weight_per_sample: further divisor of the parts' gradients, beside the number of samples.
        """
        if self.parts < 2 or not all(isfinite(number) for number in self):
            return None
        # the factors of DDP, of the samples (see `LocalForwardBackward`) and of fp16
        factor = samples * weight_per_sample / world_size / self.loss_scale
        square = self.square / self.loss_scale**2
        between = (self.squares_by_weight * factor**2 - self.weight * square) / (self.parts - 1)
        return Moments(square - between / self.weight, between * samples / self.weight)


class GradientNoise:
    """Observer of the parts of each step's gradient, see `GradientObserver`.

    Args:
        parameters: trained parameters.
    """

    def __init__(self, parameters: list[nn.Parameter], ranks: DistContext) -> None:
        self._parameters = parameters
        self.ranks = ranks
        self.parts: RankParts | MicroBatchParts = (
            RankParts(parameters) if ranks.world_size > 1 else MicroBatchParts(parameters)
        )
        self._zero = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._known: tuple[list[Weight], tuple[Tensor, Tensor, Tensor]] | None = None
        """The last weights that were Python numbers, and what follows from them."""

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients, before it is averaged."""
        if isinstance(self.parts, RankParts):
            self.parts.see_bucket(bucket)

    def end_micro_batch(self, is_last: bool) -> None:
        """Take in a micro-batch's gradients, after its backward pass; `is_last` of the step."""
        if isinstance(self.parts, MicroBatchParts):
            self.parts.end_micro_batch(is_last)

    @torch.no_grad()
    def numbers(self, weights: list[Weight], loss_scale: Tensor) -> Tensor:
        """Return the fields of `StepNumbers` over all ranks: float64, shape [5].

        Every rank must call it, when the parameters hold the gradient divided by the whole weight. Does not wait for
        the device.

        Args:
            weights: weights of this rank's micro-batches that count.
            loss_scale: factor on all gradients: float64, shape [].
        """
        parts = self.parts.take(weights)
        norms = [each for each, _ in parts]
        if self.ranks.is_first:  # from one rank only, so that all ranks compute with the same bits
            norms.append(_norms_of(self._parameters, self._zero))
        squares = self._sums_of_squares(norms)
        inverse, count, weight = self._of_weights([each for _, each in parts], len(norms))
        whole, scale = (squares[-1], loss_scale) if self.ranks.is_first else (self._zero, self._zero)
        return self.ranks.sum(torch.stack([squares @ inverse, count, weight, whole, scale]))

    def _sums_of_squares(self, norms: Sequence[Norms]) -> Tensor:
        """Return the sum of the squares of each sequence: float64, shape [len(norms)]."""
        if not norms:
            return self._zero.new_zeros(0)
        together = torch.stack([norm for each in norms for norm in each])
        return together.to(torch.float64).square().view(len(norms), -1).sum(1)

    def _of_weights(self, weights: list[Weight], length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return 1 / weight of each part (0 for a weight of 0) and zeros up to the length, and number and sum of the
        weights above 0: float64, shapes [length], [] and []."""
        are_numbers = not any(isinstance(weight, Tensor) for weight in weights)
        if are_numbers and self._known is not None and self._known[0] == weights:
            return self._known[1]
        found = self._zero.new_zeros(length)
        for number, weight in enumerate(weights):
            found[number].fill_(weight)  # an assignment may wait for the device
        counts = found > 0
        result = torch.where(counts, 1 / found, 0.0), counts.sum(dtype=torch.float64), found.sum()
        if are_numbers:  # such as numbers of samples, which are the same in nearly each step
            self._known = weights, result
        return result


def _norms_of(parameters: Sequence[nn.Parameter], zero: Tensor) -> Norms:
    """Return the norm of each parameter's gradient; `zero` for one that has none."""
    gradients = [parameter.grad for parameter in parameters]
    found = iter(foreach_norm([gradient for gradient in gradients if gradient is not None]))
    return [zero if gradient is None else next(found) for gradient in gradients]
