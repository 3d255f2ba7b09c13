"""The gradient noise scale while training (McCandlish et al. 2018, arXiv:1812.06162): `trainer.noise_scale`.

    B_simple = tr(Sigma) / |G|^2

in samples: the variance of one sample's gradient over the squared norm of the expected gradient. Far below it, a batch
of twice the size needs half the steps; far above it, it needs as many steps. The estimate is the ratio of the means of
both over a window of steps, not the mean of ratios: in a single step the estimate of |G|^2 is often negative.

The interval is Fieller's (1954) for the ratio of two means that are measured together. It holds at 95 % as long as the
gradient changes little over the window. The plain gradient is measured, before the optimizer transforms it: for Adam
the noise scale is only a hint.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name

from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import StepStats
from paceline.engine.gradient_noise import GradientNoise, Moments, StepNumbers

WINDOW = 100
"""Number of measured steps in the estimate, the newest ones."""
LEAST = 8
"""Number of measured steps before the first estimate is logged."""


class NoiseEstimate(NamedTuple):
    """A noise scale in samples, with its 95 % interval."""

    value: float
    """Noise scale in samples; `inf` if the expected gradient is not visible in the noise."""
    low: float
    high: float
    """Upper end of the interval; `inf` if the expected gradient may be zero."""


class NoiseScale:
    """Measures the noise scale every `every_n_steps` steps. Between two logs, no step waits for the device.

    Args:
        every_n_steps: steps between two measurements; the other steps cost nothing.
        gradient_scale: multiplies a loss by the factor that fp16's gradients carry.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        ranks: DistContext,
        every_n_steps: int,
        gradient_scale: Callable[[Tensor], Tensor],
    ) -> None:
        self._noise = GradientNoise(parameters, ranks)
        self._every = every_n_steps
        self._gradient_scale = gradient_scale
        self._one = torch.ones((), dtype=torch.float64, device=ranks.device)
        self._is_due = False
        self._unread: list[tuple[Tensor, int, float]] = []
        """Numbers, samples and weight per sample of each measured step that has not been read from the device."""
        self.window: list[Moments] = []
        """Estimates of the newest measured steps that have been read."""

    def begin(self, step: int) -> None:
        """Begin an optimizer step, counted from 0."""
        self._is_due = (step + 1) % self._every == 0

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients, before it is averaged."""
        if self._is_due:
            self._noise.see_bucket(bucket)

    def end_micro_batch(self, is_last: bool) -> None:
        """Take in a micro-batch's gradients, after its backward pass; `is_last` of the step."""
        if self._is_due:
            self._noise.end_micro_batch(is_last)

    def end_gradient(self, stats: StepStats) -> None:
        """Measure the gradient of a step, before it is clipped, if that is due. Every rank must call it."""
        if self._is_due:
            numbers = self._noise.numbers(stats.weights, self._gradient_scale(self._one))
            self._unread.append((numbers, stats.samples, stats.weight_per_sample))
            if len(self._unread) >= WINDOW:
                self._read()

    def metrics(self) -> dict[str, float]:
        """Return metrics for the log: the noise scale and its interval, as far as they are finite."""
        self._read()
        if len(self.window) < LEAST:
            return {}
        found = noise_scale(self.window)
        named = {"noise_scale": found.value, "noise_scale_low": found.low, "noise_scale_high": found.high}
        return {name: value for name, value in named.items() if value < inf}

    def state_dict(self) -> dict[str, Any]:
        """Return the window, as JSON values."""
        self._read()
        return {"window": [list(moments) for moments in self.window]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the window."""
        self.window = [Moments(*moments) for moments in state["window"]]

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        world_size = self._noise.ranks.world_size
        for numbers, samples, weight_per_sample in unread:
            moments = StepNumbers(*numbers.tolist()).moments(samples, world_size, weight_per_sample)
            if moments is not None:
                self.window.append(moments)
        del self.window[:-WINDOW]


def noise_scale(measured: Sequence[Moments]) -> NoiseEstimate:
    """Return the ratio of the mean variance to the mean squared norm, with Fieller's 95 % interval.

    Args:
        measured: at least two steps.
    """
    count = len(measured)
    squares, variances = zip(*measured, strict=True)  # the fields of `Moments`
    square, variance = sum(squares) / count, sum(variances) / count
    off_square = [each - square for each in squares]
    off_variance = [each - variance for each in variances]
    quantile = student_quantile(count - 1) ** 2 / (count * (count - 1))
    # the ratios r with a r^2 - 2 b r + c <= 0 are not ruled out
    a = square**2 - quantile * sum(map(mul, off_square, off_square))
    b = variance * square - quantile * sum(map(mul, off_variance, off_square))
    c = variance**2 - quantile * sum(map(mul, off_variance, off_variance))
    if square <= 0 or a == 0:
        return NoiseEstimate(variance / square if square > 0 else inf, 0.0, inf)
    if (within := b * b - a * c) < 0:  # no ratio is ruled out
        return NoiseEstimate(variance / square, 0.0, inf)
    low = (b - sqrt(within)) / a
    # where a < 0, a squared norm of zero is not ruled out, nor is any large ratio
    high = (b + sqrt(within)) / a if a > 0 else inf
    return NoiseEstimate(variance / square, max(low, 0.0), high)


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t, to three digits from seven degrees of freedom on (Abramowitz and
    Stegun 1964, 26.7.5)."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))
