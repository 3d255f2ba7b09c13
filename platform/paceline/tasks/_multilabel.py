"""The module behind `multilabel`."""

import torch
from torch.nn import functional as F

from paceline.tasks._checked import full_precision, pair, same_shape, tensor
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

_NEEDS = "multilabel needs logits and targets of shape [batch, labels]"


class Multilabel(Task):
    """Binary cross-entropy over logits of shape [batch, labels] against targets of the same shape."""

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> TaskOutput:
        """Sum over the samples of the mean loss of their labels; in evaluation also of the share of right labels.

        Raises:
            UnusableCode: the batch or the model's output has another form.
        """
        inputs, targets = pair(batch, "multilabel needs pairs (input, labels)")
        logits = same_shape(full_precision(tensor(self.model(inputs), _NEEDS)), targets, _NEEDS)
        samples = targets.shape[0]
        loss = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="sum")
        labels = targets[0].numel() if samples else 1
        if self.training:
            return TaskOutput(loss / labels, samples)
        predictions, wanted = (logits.detach() > 0).long(), (targets > 0.5).long()  # a sigmoid above 0.5
        correct = (predictions == wanted).sum() / labels
        return TaskOutput(loss / labels, samples, {"accuracy": correct}, predictions, wanted)
