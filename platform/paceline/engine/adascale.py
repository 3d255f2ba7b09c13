"""AdaScale SGD (Johnson et al. 2020, arXiv:2007.05105): a learning rate that follows the batch as far as noise allows.

With B the global batch size, B0 the one that the base learning rate was chosen for, and S = B/B0, each step's learning
rate is the base one times the schedule times the gain

    r = (v/B0 + m) / (v/B + m),        1 <= r <= S   (S <= r <= 1 where S < 1)

where m is the squared norm of the expected gradient and v the variance of one sample's gradient, summed over its
entries. If noise dominates, r is S, as in the linear rule; without noise, r is 1.

Unlike in the paper, the schedule and the length of training count steps, not the gains: Paceline's budgets are in
samples, and runs are compared at equal ones. The short last batch of an epoch takes the gain of a full one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name
from torch.optim import Optimizer

from paceline.engine.batch_stages import BatchStages
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import StepStats
from paceline.engine.gradient_noise import GradientNoise, Moments, StepNumbers, Weight
from paceline.engine.lr_policy import LRPolicy
from paceline.lr_schedulers.base import Schedule

SMOOTHING_SCALE = 1000
"""The averages' decay is 1 - S/1000, as in the paper."""


class AdaScale:
    """The gain of each step, from running averages of m and v. Reads five numbers from the device at each step."""

    def __init__(
        self, parameters: list[nn.Parameter], base_batch_size: int, global_batch_size: int, ranks: DistContext
    ) -> None:
        self._base = base_batch_size
        self.global_batch_size = global_batch_size
        """Global batch size of the next step. The averages are per sample, so they stay valid when the size changes."""
        self._noise = GradientNoise(parameters, ranks)
        self.device = ranks.device
        self._square = 0.0
        self._variance = 0.0
        self._steps = 0

    @property
    def _decay(self) -> float:
        return max(1 - self.global_batch_size / self._base / SMOOTHING_SCALE, 0.0)

    @property
    def gain(self) -> float:
        """Factor on the base learning rate; 1 until the first measurement."""
        square, variance = max(self._square, 0.0), max(self._variance, 0.0)
        below = variance / self.global_batch_size + square
        gain = (variance / self._base + square) / below if below > 0 else 1.0
        lowest, highest = sorted((1.0, self.global_batch_size / self._base))
        return min(max(gain, lowest), highest)

    def see_bucket(self, bucket: GradBucket) -> None:
        """Take in a bucket of this rank's own gradients, before it is averaged."""
        self._noise.see_bucket(bucket)

    def end_micro_batch(self, is_last: bool) -> None:
        """Take in a micro batch's gradients, after its backward pass; `is_last` of the step."""
        self._noise.end_micro_batch(is_last)

    def measure(self, samples: int, weights: list[Weight], loss_scale: Tensor, weight_per_sample: float = 1.0) -> float:
        """Take in the step whose gradients, divided by the whole weight, the parameters hold. Every rank must call it.

        A step whose gradients are not finite, or in which fewer than two parts count, leaves the averages as they are.

        Args:
            samples: number of samples in the global batch.
            weights: weights of this rank's micro batches that count.
            loss_scale: factor on all gradients: float64, shape [].
            weight_per_sample: further divisor of the parts' gradients, beside the number of samples.

        Returns:
            The gain.
        """
        numbers = StepNumbers(*self._noise.numbers(weights, loss_scale).tolist())
        moments = numbers.moments(samples, self._noise.ranks.world_size, weight_per_sample)
        if moments is not None:
            self._average(moments)
        return self.gain

    def state_dict(self) -> dict[str, float]:
        """Return the averages, as JSON values."""
        return {"square": self._square, "variance": self._variance, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the averages."""
        self._square, self._variance, self._steps = state["square"], state["variance"], state["steps"]

    def _average(self, moments: Moments) -> None:
        self._steps += 1
        # the mean of all steps at first, so that the start value has no weight
        decay = min(self._decay, 1 - 1 / self._steps)
        self._square += (1 - decay) * (moments.square - self._square)
        self._variance += (1 - decay) * (moments.variance - self._variance)


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
        stages: BatchStages | None = None,
    ) -> None:
        super().__init__(optimizer, peak_lr, schedule, stages)
        self.adascale = adascale
        self._gradient_scale = gradient_scale
        self._one = torch.ones((), dtype=torch.float64, device=adascale.device)

    def lr(self, step: int, stats: StepStats) -> float:
        """Measure the gain of an optimizer step, and return its learning rate."""
        if self.stages is not None:
            self.adascale.global_batch_size = self.stages.global_batch_size
        scale = self._gradient_scale(self._one)
        gain = self.adascale.measure(stats.samples, stats.weights, scale, stats.weight_per_sample)
        return super().lr(step, stats) * gain

    def metrics(self) -> dict[str, float]:
        """Return metrics for the log."""
        return {**super().metrics(), "adascale_gain": self.adascale.gain}
