"""Models that return their own loss, as those of Hugging Face do."""

from typing import TYPE_CHECKING, ClassVar, Literal

from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class ModelLossConfig(TaskConfig):
    """Batches are what the model takes: a mapping is passed by name, as `model(**batch)`, a list or tuple by position.

    The model returns its mean loss as the attribute `loss`, under the key `loss`, or as the first element of a tuple.
    Where the batch has `labels` of more than one dimension, the mean counts as one over the labels that are not -100;
    otherwise as one over the samples.
    """

    evaluation_metrics: ClassVar[tuple[str, ...]] = ("loss",)

    name: Literal["model_loss"]
    """Selects this task."""
    shifts_labels: bool | Literal["auto"] = "auto"
    """True where the model compares each label with the output one position before, as causal language models do: the
    first label of each sequence then does not count. `auto`: where `model.config.is_decoder` is true, or the name of
    the model's class contains `CausalLM` or `LMHead`."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`."""
        from paceline.tasks._model_loss import ModelLoss

        return ModelLoss(model, self.shifts_labels)
