"""Synthetic data: shapes, sameness, and that there is something to learn."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.data.synthetic import SyntheticConfig
from paceline.errors import EnvironmentFault
from support.refusals import refused


def build(**fields: Any) -> Any:
    return SyntheticConfig.model_validate({"name": "synthetic", **fields}).build()


@pytest.mark.parametrize("shape", [[3, 32, 32], [1, 28, 28], [5]])
def test_shapes_and_sizes(shape: list[int]) -> None:
    config = SyntheticConfig(name="synthetic", shape=shape, num_classes=4, num_samples=30, num_validation_samples=7)
    parts: Any = config.build()
    assert config.sizes() == (30, 7)
    for part, count in zip(parts, (30, 7), strict=True):
        inputs, targets = part.tensors
        assert (inputs.shape, inputs.dtype) == ((count, *shape), torch.float32)
        assert (targets.dtype, set(targets.tolist())) == (torch.int64, {0, 1, 2, 3})


def test_the_same_each_time_whatever_the_global_generator() -> None:
    torch.manual_seed(1)
    first = build()[0].tensors[0]
    torch.manual_seed(2)
    assert build()[0].tensors[0].equal(first)


def test_training_and_validation_differ_but_share_the_classes() -> None:
    train, validation = build(num_samples=1000, num_validation_samples=1000)
    assert not train.tensors[0].equal(validation.tensors[0])
    means = torch.stack([train.tensors[0][train.tensors[1] == label].mean(0) for label in range(10)]).flatten(1)
    nearest = torch.cdist(validation.tensors[0].flatten(1), means).argmin(1)
    assert (nearest == validation.tensors[1]).float().mean() > 0.95


def test_a_pattern_is_coarse_enough_for_convolutions() -> None:
    train, _ = build(num_samples=1000, num_classes=2)
    mean = train.tensors[0][train.tensors[1] == 0].mean(0)
    blocks = mean.unfold(1, 8, 8).unfold(2, 8, 8).flatten(3)
    assert blocks.std(3).mean() < 0.1 * blocks.mean(3).std()


def test_more_than_the_memory_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=2**30))
    refusal = refused(EnvironmentFault, build, shape=[2**20], num_samples=400, num_validation_samples=102)
    assert refusal.code == "data-too-large"
    assert refusal.fields["needed_gib"] == pytest.approx(2.0, rel=0.05)
    assert refusal.fields["available_gib"] == 1.0
    build(num_samples=30)
