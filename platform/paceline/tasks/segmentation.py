"""Semantic segmentation: cross-entropy of each pixel and mean intersection over union."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class SegmentationConfig(TaskConfig):
    """Batches are `(inputs, targets)`: what the model takes, and a class for each pixel, int64 of shape
    [batch, height, width].

    Losses are means over the pixels that count. `val/pixel_accuracy` is the share of them that is right; `val/mean_iou`
    is the mean over the classes of intersection / union, each summed over the whole set. Classes that occur neither in
    the targets nor in the predictions are left out.
    """

    evaluation_metrics: ClassVar[tuple[str, ...]] = ("loss", "pixel_accuracy", "mean_iou")

    name: Literal["segmentation"]
    """Selects this task."""
    ignore_index: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 255
    """Target of pixels that do not count, -2^31 to 2^31 - 1."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`, whose outputs are logits of shape [batch, classes, height, width], or a mapping
        that holds them as `out`, as torchvision's models return."""
        from paceline.tasks._segmentation import Segmentation

        return Segmentation(model, self.ignore_index)
