"""The module behind `language_modeling`."""

import torch
from torch.nn import functional as F

from paceline.tasks._checked import pair, tensor
from paceline.tasks._task import Task
from paceline.tasks.output import IGNORE_INDEX, TaskOutput


class LanguageModeling(Task):
    """Cross-entropy over logits of shape [batch, context, vocab] against tokens of shape [batch, context]."""

    weight_is_samples = False

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> TaskOutput:
        """Sum of the losses over the tokens that count; in evaluation also the number of those predicted right, and
        predictions and targets of these tokens: int64, [tokens that count].

        Raises:
            UnusableCode: the batch or the model's output is nothing of the kind.
        """
        tokens, targets = pair(batch, "language_modeling needs pairs (tokens, targets)")
        logits = tensor(self.model(tokens), "language_modeling needs logits of shape [batch, context, vocab]")
        loss_sum = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
        counts = targets != IGNORE_INDEX
        if self.training:
            return TaskOutput(loss_sum, counts.sum())
        predictions = logits.detach().argmax(dim=-1)
        # no token has the number that stands for "does not count", so such a target is never right
        correct = (predictions == targets).sum()
        kept = counts.flatten().nonzero().squeeze(1)  # the shapes depend on values from here on
        return TaskOutput(
            loss_sum, counts.sum(), {"accuracy": correct}, predictions.flatten()[kept], targets.flatten()[kept]
        )
