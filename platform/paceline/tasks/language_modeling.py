"""Next-token prediction: cross-entropy and accuracy over the tokens that count."""

from typing import TYPE_CHECKING, ClassVar, Literal

from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class LanguageModelingConfig(TaskConfig):
    """Batches are `(tokens, targets)`, int64 of shape [batch, context] each; a target is the token to be predicted.

    Targets of -100 do not count: neither in the loss nor in the accuracy, nor in what they are divided by. So losses
    are means over tokens, in nats, and e to the power of `val/loss` is the perplexity.
    """

    evaluation_metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    name: Literal["language_modeling"]
    """Selects this task."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`, whose outputs are logits of shape [batch, context, vocab_size]."""
        from paceline.tasks._language_modeling import LanguageModeling

        return LanguageModeling(model)
