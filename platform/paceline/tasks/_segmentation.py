"""The module behind `segmentation`."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._checked import pair, tensor
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

_NEEDS = "segmentation needs logits of shape [batch, classes, height, width]"


class Segmentation(Task):
    """Cross-entropy over logits of shape [batch, classes, height, width] against classes [batch, height, width]."""

    weight_is_samples = False

    def __init__(self, model: nn.Module, ignore_index: int = 255) -> None:
        super().__init__(model)
        self.ignore_index = ignore_index

    def forward(self, batch: tuple[Tensor, Tensor]) -> TaskOutput:
        """Sum of the losses over the pixels that count; in evaluation also the sums behind the metrics.

        Raises:
            UnusableCode: the batch, the model's output or the targets have another form.
        """
        inputs, targets = pair(batch, "segmentation needs pairs (input, classes of its pixels)")
        output = self.model(inputs)
        logits = tensor(output["out"] if isinstance(output, Mapping) and "out" in output else output, _NEEDS)
        if logits.ndim != 4 or logits.shape[:1] + logits.shape[2:] != targets.shape:
            shapes = f"the model returned the shape {list(logits.shape)} for targets of {list(targets.shape)}"
            raise UnusableCode(f"{shapes}; {_NEEDS} and targets of shape [batch, height, width]", "wrong-shape")
        try:
            loss_sum = F.cross_entropy(logits, targets, ignore_index=self.ignore_index, reduction="sum")
        except IndexError as error:  # on the CPU; a GPU's kernel only fails later, without an error to translate
            raise _out_of_range(logits, error) from error
        counts = targets != self.ignore_index
        if self.training:
            return TaskOutput(loss_sum, counts.sum())
        predictions = logits.detach().argmax(dim=1)
        metrics = _sums(predictions, targets, counts, logits.shape[1])
        return TaskOutput(loss_sum, counts.sum(), metrics, predictions, targets)

    def compute(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Loss, pixel accuracy and mean intersection over union."""
        occurs = sums["union"] > 0
        return {
            "loss": float(sums["loss"] / sums["weight"]),
            "pixel_accuracy": float(sums["intersection"].sum() / sums["weight"]),
            "mean_iou": float((sums["intersection"][occurs] / sums["union"][occurs]).mean()),
        }


def _sums(predictions: Tensor, targets: Tensor, counts: Tensor, classes: int) -> dict[str, Tensor]:
    """Pixels in the intersection and in the union of prediction and target of each class: shape [classes]."""
    pairs = torch.where(counts, targets * classes + predictions, classes**2).flatten()
    table = torch.bincount(pairs, minlength=classes**2 + 1)[:-1].view(classes, classes)
    intersection = table.diagonal()
    return {"intersection": intersection, "union": table.sum(0) + table.sum(1) - intersection}


def _out_of_range(logits: Tensor, error: IndexError) -> UnusableCode:
    classes = logits.shape[1]
    return UnusableCode(
        f"the model has {classes} classes, so targets go from 0 to {classes - 1}, or are task.ignore_index: "
        f"{str(error).rstrip('.')}",
        "target-out-of-range",
        classes=classes,
    )
