"""The module behind `model_loss`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paceline._compat.torch import tree_leaves
from paceline.errors import UnusableCode
from paceline.tasks._checked import full_precision
from paceline.tasks._task import Task
from paceline.tasks.output import IGNORE_INDEX, TaskOutput


class ModelLoss(Task):
    """The mean loss that the model returns, times the number of labels or samples that it is the mean of."""

    weight_is_samples = False

    def __init__(self, model: nn.Module, shifts_labels: bool | Literal["auto"] = "auto") -> None:
        super().__init__(model)
        self.shifts_labels = _shifts_labels(model) if shifts_labels == "auto" else shifts_labels

    def forward(self, batch: Any) -> TaskOutput:
        """Loss and weight; in evaluation also predictions and targets, where there are `logits` and `labels`.

        Raises:
            UnusableCode: the model returned no scalar loss, it cannot use the labels, or the batch holds no tensor.
        """
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        try:
            output = self._call_model(batch)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(labels, list | tuple):  # only after the model has failed: some take lists, such as of boxes
                raise _wrong_labels(labels, error) from error
            raise
        loss = _loss(output, batch)
        weight = self._weight(batch, labels)
        result = TaskOutput.from_mean(loss, weight)
        if not self.training:
            if isinstance(weight, Tensor):  # the mean over no label at all is not a number
                result.loss_sum = torch.where(weight > 0, result.loss_sum, 0.0)
            result.predictions, result.targets = self._predictions(_part(output, "logits"), labels)
        return result

    def _call_model(self, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            return self.model(**batch)
        return self.model(*batch) if isinstance(batch, list | tuple) else self.model(batch)

    def _weight(self, batch: Any, labels: Any) -> int | Tensor:
        if isinstance(labels, Tensor) and labels.ndim > 1:
            return (self._counted(labels) != IGNORE_INDEX).sum()
        first = next((each for each in tree_leaves(_plain(batch)) if isinstance(each, Tensor) and each.ndim), None)
        if first is None:
            raise UnusableCode(
                "task.name model_loss: the batch holds no tensor, so the number of its samples is not known. Return "
                "tensors from the data set",
                "wrong-batch",
            )
        return first.shape[0]

    def _counted(self, labels: Tensor) -> Tensor:
        return labels[..., 1:] if self.shifts_labels else labels

    def _predictions(self, logits: Any, labels: Any) -> tuple[Any, Any]:
        """Classes and labels, of shape [batch, ...]; numbers where the labels are floating."""
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
            return None, None
        logits = logits.detach()
        if labels.is_floating_point():
            return (logits.reshape(labels.shape) if logits.numel() == labels.numel() else logits), labels
        if self.shifts_labels and labels.ndim > 1:
            return logits[..., :-1, :].argmax(dim=-1), self._counted(labels)
        return logits.argmax(dim=-1), labels


def _wrong_labels(labels: Sequence[Any], error: Exception) -> UnusableCode:
    kind = f"a {type(labels).__name__}" + (f" of {type(labels[0]).__name__}" if labels else "")
    return UnusableCode(
        f"task.name model_loss: the batch's key labels is {kind}; it must be a tensor, of int64 for classes. Convert "
        f"it in the data set or in collate_fn. The model raised {type(error).__name__}: {error}",
        "wrong-target",
        targets=kind,
    )


def _shifts_labels(model: nn.Module) -> bool:
    name = type(model).__name__
    is_decoder = getattr(getattr(model, "config", None), "is_decoder", False)
    return is_decoder is True or "CausalLM" in name or "LMHead" in name


def _plain(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Mapping) else batch


def _part(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return output.get(name)
    return getattr(output, name, None)


def _loss(output: Any, batch: Any) -> Tensor:
    found = _part(output, "loss")
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, Tensor) or found.numel() != 1:
        what = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else f"{type(output).__name__}"
        keys = f", which has {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        raise UnusableCode(
            f"task.name model_loss: the model returned {what} and no scalar loss. Return an object with the attribute "
            "or key loss, or a tuple that begins with the mean loss; Hugging Face models need labels in the batch"
            f"{keys}",
            "no-loss",
        )
    return full_precision(found.reshape(()))
