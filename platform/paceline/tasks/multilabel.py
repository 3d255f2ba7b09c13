"""Classification with several labels a sample: binary cross-entropy and accuracy."""

from typing import TYPE_CHECKING, ClassVar, Literal

from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class MultilabelConfig(TaskConfig):
    """Batches are `(inputs, targets)`: what the model takes, and 0 or 1 for each label (integers or floats), of shape
    [batch, labels].

    The loss is the mean over samples and labels. `val/accuracy` is the share of labels that are right, where a
    probability above 0.5 is a 1.
    """

    evaluation_metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    name: Literal["multilabel"]
    """Selects this task."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`, whose outputs are logits of shape [batch, labels]."""
        from paceline.tasks._multilabel import Multilabel

        return Multilabel(model)
