"""What a task returns for a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100
"""A target that does not count, such as one behind the end of a text; the same number as in PyTorch."""


@dataclass
class TaskOutput:
    """What one forward pass over a micro batch gives.

    The loss of an optimizer step is the sum of `loss_sum` over the sum of `weight` of the whole global batch.
    """

    loss_sum: "torch.Tensor"
    """Scalar: the sum, not the mean, of the micro batch's losses. See `from_mean`."""
    weight: "float | torch.Tensor"
    """What the sum is divided by, a number or a scalar tensor: the number of samples, or of tokens that count."""
    metrics: "Mapping[str, float | torch.Tensor]" = field(default_factory=dict)
    """Numbers summed over the micro batch like `loss_sum`, such as the number of right answers for `accuracy`. Tensors
    of any shape, such as a confusion matrix, need a task that overrides `Task.compute`. Only read in evaluation."""
    predictions: "torch.Tensor | None" = None
    """What metrics compare with `targets` and `paceline predict` writes, such as class indices of shape [batch]. Only
    read in evaluation."""
    targets: "torch.Tensor | None" = None
    """What was to be predicted; its first dimension is that of `predictions`. Only read in evaluation."""

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
            weight: what the mean was taken over: the number of samples, or of tokens that count.
            metrics: sums over the micro batch by name, not means, such as the number of correct predictions for
                `accuracy`.
            predictions: what metrics compare with `targets` and `paceline predict` writes; shape [batch, ...].
            targets: the expected predictions; shape [batch, ...].
        """
        return cls(loss * weight, weight, metrics or {}, predictions, targets)
