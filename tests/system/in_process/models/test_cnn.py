"""The small convolutional network."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.data.mnist5k import Mnist5kConfig
from paceline.models.cnn import CNNConfig


@pytest.mark.parametrize("size", [(28, 28), (8, 20), (64, 48), (1, 1)])
def test_any_image_size(size: tuple[int, int]) -> None:
    model = CNNConfig(name="cnn", in_channels=3, num_classes=7, width=4).build()
    assert model(torch.randn(2, 3, *size)).shape == (2, 7)


def test_every_parameter_gets_a_gradient_and_there_are_no_buffers() -> None:
    model = CNNConfig(name="cnn").build()
    model(torch.randn(2, 1, 28, 28)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert not list(model.buffers())
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())


def test_a_sample_does_not_depend_on_the_others() -> None:
    model = CNNConfig(name="cnn").build().double()
    images = torch.randn(4, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), atol=1e-12, rtol=1e-12)


def test_learns_digits() -> None:
    """Two short epochs; the whole recipe, with its warmup and schedule, is configs/mnist_cnn.yaml."""
    torch.manual_seed(0)
    parts: Any = Mnist5kConfig(name="mnist5k").build()
    train, validation = parts
    model = CNNConfig(name="cnn").build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(2):
        for ids in torch.randperm(len(train)).split(64):  # type: ignore[no-untyped-call]
            inputs, targets = train.batch(ids, 0, epoch)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    inputs, targets = validation.batch(torch.arange(len(validation)), 0, 0)
    with torch.no_grad():
        assert (model(inputs).argmax(1) == targets).float().mean() > 0.93
