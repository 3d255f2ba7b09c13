"""Models as chains, and chains as stages."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models

from paceline.engine.activation_checkpointing import apply_activation_checkpointing
from paceline.engine.pipeline_cut import Link, balanced, keep_only, links_of
from paceline.errors import UnusableCode
from paceline.models._cnn import CNN
from paceline.models._mlp import MLP
from support.refusals import refused
from support.sentences import tiny_gpt


def through(links: list[Link], value: torch.Tensor) -> torch.Tensor:
    for link in links:
        value = link.call(value)
    return value


CHAINS = {
    "sequential": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2))), (3, 6), 3),
    "gpt": (partial(tiny_gpt, tie_embeddings=False), None, 4),
    "cnn": (lambda: CNN(1, 4, width=3), (2, 1, 28, 28), 3),
    "mlp": (lambda: MLP(6, [5, 4, 3], 2, "gelu"), (3, 2, 3), 4),
    "resnet18": (lambda: models.resnet18(num_classes=4), (2, 3, 32, 32), 15),
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_computes_what_the_model_does(case: str) -> None:
    build, shape, at_least = CHAINS[case]
    torch.manual_seed(0)
    model = build().double().eval()
    value = torch.randint(11, (2, 8)) if shape is None else torch.randn(shape, dtype=torch.float64)
    links = links_of(model)
    assert len(links) >= at_least
    assert torch.equal(through(links, value), model(value))
    used = frozenset().union(*(link.tensors for link in links))
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    assert used == {name for name, _ in named}


def test_a_residual_block_is_one_link() -> None:
    (block,) = [link.tensors for link in links_of(models.resnet18()) if "layer2.0.conv1.weight" in link.tensors]
    assert {"layer2.0.conv2.weight", "layer2.0.downsample.0.weight"} <= block


class Shortcut(nn.Module):
    """The input is needed again at the end: the middle cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        return self.third(hidden + self.second(hidden) * self.scale)


def test_nothing_is_cut_while_two_values_are_needed() -> None:
    model = Shortcut()
    links = links_of(model)
    assert [sorted(link.tensors) for link in links] == [
        ["first.bias", "first.weight"],
        ["scale", "second.bias", "second.weight"],
        ["third.bias", "third.weight"],
    ]
    inputs = torch.randn(2, 4)
    assert torch.equal(through(links, inputs), model(inputs))


def test_a_technique_on_a_block_stays_with_it() -> None:
    model = models.resnet18(num_classes=4)
    apply_activation_checkpointing(model, "full")

    def kept(model: nn.Module) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda each: sizes.append(each.numel()), lambda each: each):
            through(links_of(model), torch.randn(2, 3, 32, 32))
        return sum(sizes)

    assert kept(model) < kept(models.resnet18(num_classes=4)) / 2


class Branching(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs if inputs.sum() > 0 else -inputs


class Dropping(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.dropout(inputs, 0.5, self.training)


@pytest.mark.parametrize(("model", "code"), [(Branching, "pipeline-untraceable"), (Dropping, "pipeline-modes-differ")])
def test_a_model_that_cannot_be_cut_is_refused(model: type[nn.Module], code: str) -> None:
    assert refused(UnusableCode, links_of, model()).code == code


@pytest.mark.parametrize(
    ("weights", "stages", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([5, 1, 1, 1, 1, 1], 2, [1, 5]),
        ([1, 1, 1, 9], 2, [3, 1]),
        ([0, 4, 0, 4, 0], 2, [3, 2]),
        ([9, 1, 1], 3, [1, 1, 1]),
        ([3, 0, 3, 0, 3, 0, 3], 4, [2, 2, 2, 1]),
    ],
)
def test_stages_are_balanced(weights: list[int], stages: int, expected: list[int]) -> None:
    links = [Link(lambda value: value, frozenset({str(index)})) for index in range(len(weights))]
    parts = balanced(links, weights, stages)
    assert [len(part) for part in parts] == expected
    assert [link for part in parts for link in part] == links


def test_more_stages_than_parts_are_refused(golden: Any) -> None:
    links = [Link(lambda value: value, frozenset())] * 3
    refusal = refused(UnusableCode, balanced, links, [1, 0, 1], 3)
    assert (refusal.code, refusal.fields) == ("too-many-stages", {"most": 2, "asked": 3})
    golden(str(refusal))


def test_tensors_of_other_stages_take_no_memory_and_keep_their_names() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    names, weight = list(model.state_dict()), model[0].weight
    keep_only(model, frozenset({"0.weight", "0.bias"}))
    assert list(model.state_dict()) == names
    assert model[0].weight is weight
    assert [name for name, tensor in model.state_dict().items() if tensor.is_meta] == names[2:]


@pytest.mark.parametrize("model", [nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), tiny_gpt()])
def test_a_checkpointed_block_that_is_cut_is_refused(model: nn.Module) -> None:
    target = model if isinstance(model, nn.Sequential) else model.blocks
    target.forward = lambda inputs: inputs
    assert refused(UnusableCode, links_of, model).code == "pipeline-checkpointed-block"
