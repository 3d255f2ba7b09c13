"""Single-label classification: cross-entropy and accuracy."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class ClassificationConfig(TaskConfig):
    """Batches are `(inputs, targets)`: what the model takes, and class indices (int64, [batch]) or class probabilities
    (float, [batch, classes]), as Mixup and CutMix give. Accuracy takes the largest as the true class."""

    evaluation_metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    name: Literal["classification"]
    """Selects this task."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target's probability that is spread over all classes, in [0, 1). 0 disables. Evaluation uses it
    too, so that `train/loss` and `val/loss` are of one kind."""
    mixup_alpha: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Train on weighted means of two samples and of their losses, with weights from Beta(alpha, alpha) (Zhang et al.
    2018, arXiv:1710.09412), 0 to 1000. Inputs must be floats. 0 disables."""
    cutmix_alpha: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Train on images with a box of another one, whose share of the area comes from Beta(alpha, alpha) (Yun et al.
    2019, arXiv:1905.04899), 0 to 1000. Inputs must be floats of shape [batch, channels, height, width]. With
    `mixup_alpha`, each micro-batch uses one of the two, with equal chance. 0 disables."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`, whose outputs are logits of shape [batch, classes]."""
        from paceline.tasks._classification import Classification

        return Classification(model, self.label_smoothing, self.mixup_alpha, self.cutmix_alpha)
