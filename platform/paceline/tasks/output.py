"""Result that a task returns for a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100
"""Target that is ignored, such as padding after the end of a text; the same number as in PyTorch."""


@dataclass
class TaskOutput:
    """Result of one forward pass over a micro batch.

    The loss of an optimizer step is the sum of `loss_sum` over the sum of `weight` of the whole global batch.
    """

    loss_sum: "torch.Tensor"
    """Scalar: the sum, not the mean, of the micro batch's losses. See `from_mean`."""
    weight: "float | torch.Tensor"
    """Divisor of the loss sum, a number or a scalar tensor: the number of samples, or of tokens that count."""
    metrics: "Mapping[str, float | torch.Tensor]" = field(default_factory=dict)
    """Numbers summed over the micro batch like `loss_sum`, such as the number of right answers for `accuracy`. Tensors
    of any shape, such as a confusion matrix, need a task that overrides `Task.compute`. Only read in evaluation."""
    predictions: "torch.Tensor | None" = None
    """Predictions that metrics compare with `targets` and that `paceline predict` writes, such as class indices of
    shape [batch]. Only read in evaluation."""
    targets: "torch.Tensor | None" = None
    """Correct values for `predictions`, with the same first dimension. Only read in evaluation."""

    @classmethod
    def from_mean(
        cls,
        loss: "torch.Tensor",
        weight: "float | torch.Tensor",
        metrics: "Mapping[str, float | torch.Tensor] | None" = None,
        predictions: "torch.Tensor | None" = None,
        targets: "torch.Tensor | None" = None,
    ) -> "TaskOutput":
        """Make the output of a task whose loss is a mean, such as `F.cross_entropy` gives by default.

        Args:
            loss: scalar: the mean of the micro batch's losses.
            weight: number of samples, or of tokens that count, over which the mean was taken.
            metrics: sums over the micro batch by name, not means, such as the number of correct predictions for
                `accuracy`.
            predictions: predictions for metrics and `paceline predict`; shape [batch, ...].
            targets: the expected predictions; shape [batch, ...].
        """
        return cls(loss * weight, weight, metrics or {}, predictions, targets)
