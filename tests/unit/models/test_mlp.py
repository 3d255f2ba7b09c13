"""The multilayer perceptron."""

import pytest
import torch
from torch.nn import functional as F

from paceline.models._mlp import ACTIVATIONS
from paceline.models.mlp import MLPConfig


def test_equals_its_formula() -> None:
    model = MLPConfig(name="mlp", in_features=12, hidden=[5, 4], num_classes=3, activation="tanh").build()
    inputs = torch.randn(6, 3, 2, 2)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    hidden = torch.tanh(F.linear(torch.tanh(F.linear(inputs.view(6, 12), w1, b1)), w2, b2))
    torch.testing.assert_close(model(inputs), F.linear(hidden, w3, b3))


def test_without_hidden_layers_it_is_linear() -> None:
    model = MLPConfig(name="mlp", in_features=4, hidden=[], num_classes=2).build()
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(2, 4), (2,)]
    assert model(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_can_be_chosen(name: str) -> None:
    model = MLPConfig.model_validate({"name": "mlp", "in_features": 4, "activation": name}).build()
    assert any(isinstance(module, ACTIVATIONS[name]) for module in model.modules())
