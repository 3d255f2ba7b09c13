"""Models that return their own mean loss: forms of the output, and what the mean is over."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from paceline.tasks.model_loss import ModelLossConfig
from support.refusals import refused
from support.toys import fit, toy_config

VOCAB = 5
TOKENS = torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1]])
LABELS = torch.tensor([[0, 1, 2, 3], [4, 4, -100, -100]])


class ToyForCausalLM(nn.Module):
    """A bigram model with the interface of Hugging Face's: it shifts the labels and returns the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.logits = nn.Parameter(torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.logits[input_ids]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


class Decoder(ToyForCausalLM):
    config = SimpleNamespace(is_decoder=True)


class Encoder(ToyForCausalLM):
    """Compares each label with the output at its own position."""

    config = SimpleNamespace(is_decoder=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.logits[input_ids]
        return SimpleNamespace(loss=F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


def build(model: nn.Module, shifts_labels: Any = "auto") -> Task:
    return ModelLossConfig(name="model_loss", shifts_labels=shifts_labels).build(model)


@pytest.mark.parametrize(
    ("model", "shifts", "weight"),
    [
        (ToyForCausalLM, "auto", 4),
        (Decoder, "auto", 4),
        (Encoder, "auto", 6),
        (Encoder, False, 6),
        (ToyForCausalLM, True, 4),
    ],
)
def test_the_mean_is_over_the_labels_that_the_model_counts(model: type[nn.Module], shifts: Any, weight: int) -> None:
    task = build(model(), shifts).eval()
    parts = [task({"input_ids": TOKENS[row : row + 1], "labels": LABELS[row : row + 1]}) for row in (0, 1)]
    whole = task({"input_ids": TOKENS, "labels": LABELS})
    assert whole.weight == sum(part.weight for part in parts) == weight
    torch.testing.assert_close(sum(part.loss_sum for part in parts), whole.loss_sum)
    assert whole.predictions.shape == whole.targets.shape == ((2, 3) if weight == 4 else (2, 4))
    assert not task.weight_is_samples


def test_a_batch_without_a_counted_label_adds_nothing_in_evaluation() -> None:
    output = build(ToyForCausalLM()).eval()({"input_ids": TOKENS, "labels": torch.full_like(LABELS, -100)})
    assert (output.loss_sum.item(), output.weight.item()) == (0.0, 0)


class Pairs(nn.Module):
    """Takes its batch by position, and returns a tuple or a mapping."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.form = form

    def forward(self, inputs: Tensor, labels: Tensor) -> Any:
        logits = self.linear(inputs)
        loss = F.cross_entropy(logits, labels)
        return {"tuple": (loss, logits), "mapping": {"loss": loss, "logits": logits}, "tensor": logits, "None": None}[
            self.form
        ]


@pytest.mark.parametrize("form", ["tuple", "mapping"])
def test_a_batch_by_position_counts_samples(form: str) -> None:
    torch.manual_seed(0)
    task = build(Pairs(form))
    inputs, labels = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    output = task((inputs, labels))
    torch.testing.assert_close(output.loss_sum, 4 * F.cross_entropy(task.model.linear(inputs), labels))  # type: ignore[union-attr,operator]
    assert output.weight == 4
    by_name = task.eval()({"inputs": inputs, "labels": labels})
    assert by_name.weight == 4
    if form == "mapping":
        assert by_name.predictions.tolist() == task.model.linear(inputs).argmax(1).tolist()  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("form", ["tensor", "None"])
def test_a_model_without_a_loss_is_refused(form: str) -> None:
    assert refused(UnusableCode, build(Pairs(form)), (torch.randn(4, 2), torch.tensor([0, 1, 2, 0]))).code == "no-loss"


def test_the_keys_of_a_batch_without_labels_are_named() -> None:
    """`label` in place of `labels` is a frequent slip."""
    batch = {"inputs": torch.randn(4, 2), "labels": torch.tensor([0, 1, 2, 0])}
    refusal = refused(UnusableCode, build(Pairs("None")), batch)
    assert "inputs, labels" in str(refusal)


def test_a_batch_without_a_tensor_is_refused() -> None:
    model: Any = nn.Module()
    model.forward = lambda text: (torch.zeros(()),)
    assert refused(UnusableCode, build(model), {"text": "a"}).code == "wrong-batch"


class Classifier(nn.Module):
    """Uses its labels as Hugging Face's models for sequence classification do."""

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        assert labels.dtype in (torch.int64, torch.int32)
        return {"loss": F.cross_entropy(inputs, labels), "logits": inputs}


@pytest.mark.parametrize(("labels", "kind"), [(["a", "b"], "a list of str"), ([0, 1], "a list of int")])
def test_labels_that_are_no_tensor_are_named(labels: Any, kind: str) -> None:
    refusal = refused(UnusableCode, build(Classifier()), {"inputs": torch.randn(2, 3), "labels": labels})
    assert (refusal.code, refusal.fields) == ("wrong-target", {"targets": kind})


def test_a_model_may_take_labels_of_its_own_kind() -> None:
    model: Any = nn.Module()
    model.forward = lambda inputs, labels: {"loss": inputs.mean() + len(labels[0]["boxes"])}
    assert build(model)({"inputs": torch.ones(2, 3), "labels": [{"boxes": torch.ones(1)}]}).loss_sum == 4


def test_other_errors_of_the_model_stay_as_they_are() -> None:
    model: Any = nn.Module()
    model.forward = lambda inputs, labels: inputs.missing
    with pytest.raises(AttributeError):
        build(model)({"inputs": torch.ones(2, 3), "labels": torch.ones(2)})


def test_a_mean_loss_becomes_a_sum() -> None:
    output = TaskOutput.from_mean(torch.tensor(0.5), 8, {"accuracy": torch.tensor(3)}, predictions=1, targets=2)
    assert (output.loss_sum, output.weight, output.metrics["accuracy"]) == (4.0, 8, 3)
    assert (output.predictions, output.targets) == (1, 2)


def test_by_default_metrics_are_sums_over_weight() -> None:
    sums = {"loss": torch.tensor(6.0), "weight": torch.tensor(4.0), "accuracy": torch.tensor(3.0)}
    assert Task(nn.Identity()).compute(sums) == {"loss": 1.5, "accuracy": 0.75}


class Sequences(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(6) + index) % VOCAB
        return {"input_ids": tokens, "labels": torch.where(torch.arange(6) < 6 - index % 3, tokens, -100)}


def test_a_mapping_goes_through_training_and_evaluation() -> None:
    config = toy_config(
        task={"name": "model_loss"},
        model={"path": ToyForCausalLM},
        data={"path": lambda: (Sequences(), Sequences()), "micro_batch_size": 3, "global_batch_size": 6},
        trainer__epochs=5,
    )
    _, _, reporter = fit(config)
    losses = reporter.values("train/loss")
    assert losses[-1] < losses[0]
