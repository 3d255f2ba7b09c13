"""Biases before batch normalisation: found by tracing, and removed without a change of the numerics."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.cluster.run_result import RunResult
from paceline.engine.redundant_bias import remove_redundant_bias
from support.toys import fit, tensors, toy_config

IMAGES = (6, 3, 9, 9)


class Chain(nn.Module):
    """Two convolutions with a norm behind each, and one without. `use` puts the first two to another use."""

    def __init__(self, use: Callable[["Chain", torch.Tensor], torch.Tensor] | None = None, **norm: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
        self.norm1 = nn.BatchNorm2d(8, **norm)
        self.conv2 = nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1)
        self.norm2 = nn.BatchNorm2d(6, **norm)
        self.head = nn.Conv2d(6, 4, 1)
        self.use = use

    def forward(self, inputs: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        first = self.norm1(self.conv1(inputs)) if self.use is None else self.use(self, inputs)
        logits = self.head(F.relu(self.norm2(self.conv2(F.relu(first))))).mean(dim=(2, 3))
        return logits if scale is None else logits * scale


def trained(model: nn.Module) -> nn.Module:
    """The model in float64, with statistics and biases as if it had been trained."""
    for name, tensor in [*model.double().named_parameters(), *model.named_buffers()]:
        if name.endswith(("bias", "running_mean")):
            nn.init.normal_(tensor)
        if name.endswith("running_var"):
            nn.init.uniform_(tensor, 0.5, 2.0)
    return model


def outputs(model: nn.Module, training: bool, shape: tuple[int, ...] = IMAGES) -> torch.Tensor:
    torch.manual_seed(1)
    result: torch.Tensor = model.train(training)(torch.randn(shape, dtype=torch.float64))
    return result


def removed(model: nn.Module, shape: tuple[int, ...] = IMAGES) -> list[str]:
    """The biases that are removed from a copy, which must compute the same.

    In evaluation, in training, and in evaluation with the new statistics.
    """
    trained(model)
    lighter = deepcopy(model)
    removal = remove_redundant_bias(lighter)
    assert bool(removal.names) != bool(removal.warning)
    for training in (False, True, False):
        expected, got = (outputs(each, training, shape) for each in (model, lighter))
        assert torch.allclose(got, expected, atol=1e-12, rtol=1e-12)
    return removal.names


@pytest.mark.parametrize("norm", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_outputs_stay_the_same(norm: dict[str, Any]) -> None:
    assert removed(Chain(**norm)) == ["conv1", "conv2"]


@pytest.mark.parametrize(
    ("convolution", "norm", "dimensions"),
    [
        (nn.Conv1d, nn.BatchNorm1d, 1),
        (nn.Conv3d, nn.BatchNorm3d, 3),
        (nn.ConvTranspose1d, nn.BatchNorm1d, 1),
        (nn.ConvTranspose3d, nn.BatchNorm3d, 3),
    ],
)
def test_every_kind_of_convolution(convolution: Any, norm: Any, dimensions: int) -> None:
    assert removed(nn.Sequential(convolution(3, 4, 2), norm(4)), (5, 3, *[4] * dimensions)) == ["0"]


def test_synchronised_norms_and_frozen_biases_count() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Chain())
    assert sorted(remove_redundant_bias(model).names) == ["conv1", "conv2"]
    frozen = Chain()
    frozen.conv1.requires_grad_(False)
    assert removed(frozen) == ["conv1", "conv2"]


# Left alone


def residual(model: Chain, inputs: torch.Tensor) -> torch.Tensor:
    features = model.conv1(inputs)
    return features + model.norm1(features)


def norm_called_twice(model: Chain, inputs: torch.Tensor) -> torch.Tensor:
    features = model.norm1(model.conv1(inputs))
    return features + model.norm1(features)


def in_training_only(model: Chain, inputs: torch.Tensor) -> torch.Tensor:
    features = model.conv1(inputs)
    return model.norm1(features) if model.training else features


USES = {
    "residual": residual,
    "called twice": lambda model, inputs: model.norm1(model.conv1(inputs)) + model.conv1(inputs),
    "norm called twice": norm_called_twice,
    "in training only": in_training_only,
    "activation between": lambda model, inputs: model.norm1(F.relu(model.conv1(inputs))),
    "bias read": lambda model, inputs: model.norm1(model.conv1(inputs)) + model.conv1.bias.sum(),
    "mean read": lambda model, inputs: model.norm1(model.conv1(inputs)) + model.norm1.running_mean[0] * inputs.mean(),
    "functional": lambda model, inputs: model.norm1(F.conv2d(inputs, model.conv1.weight, model.conv1.bias, padding=1)),
}


@pytest.mark.parametrize("use", USES)
def test_a_bias_that_counts_is_left_alone(use: str) -> None:
    assert removed(Chain(USES[use])) == ["conv2"]


def second_name(model: Chain) -> None:
    model.again = model.conv1


def shared_bias(model: Chain) -> None:
    model.other = nn.Parameter(torch.zeros(8))
    model.other = model.conv1.bias


def always_evaluating(model: Chain) -> None:
    model.norm1.train = lambda mode=True: nn.BatchNorm2d.train(model.norm1, False)  # type: ignore[method-assign]
    model.norm1.eval()


def hooked(model: Chain) -> None:
    model.conv1.register_forward_hook(lambda module, inputs, output: output * 2)


def own_forward(model: Chain) -> None:
    model.conv1.forward = lambda inputs: F.conv2d(inputs, model.conv1.weight, padding=1)  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [second_name, shared_bias, always_evaluating, hooked, own_forward])
def test_a_module_that_is_not_what_it_seems_is_left_alone(change: Callable[[Chain], None]) -> None:
    model = Chain()
    change(model)
    assert remove_redundant_bias(model).names == ["conv2"]


class Remembering(Chain):
    """Keeps and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("counted", torch.zeros(()))

    def forward(self, inputs: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        self.calls += 1
        self.counted += 1
        self.last = inputs
        return super().forward(inputs)


def test_linear_layers_are_left_alone() -> None:
    """Of a linear layer's output of three dimensions, `BatchNorm1d` takes the second one for channels."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert remove_redundant_bias(model).names == []
    assert model[0].bias is not None


def test_tracing_leaves_no_trace() -> None:
    model = Remembering().eval()
    assert remove_redundant_bias(model).names == ["conv1", "conv2"]
    assert model.calls == 0
    assert not hasattr(model, "last")
    assert float(model.counted) == 0
    assert not any(module.training for module in model.modules())


# Training


def config(removes: bool, **overrides: Any) -> Any:
    defaults = {
        "task": {"name": "classification"},
        "model": {"path": Chain},
        "data": {"path": lambda: tensors(24, *IMAGES[1:], classes=4), "global_batch_size": 8},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "trainer__remove_redundant_bias": removes,
        "trainer__max_steps": 10,
        "trainer__epochs": None,
    }
    return toy_config(**{**defaults, **overrides})


def test_training_equals_that_with_the_biases() -> None:
    plain, lighter = (fit(config(removes)) for removes in (False, True))
    expected, got = (trainer.state.task.state_dict() for trainer, _, _ in (plain, lighter))
    assert expected.keys() - got.keys() == {"model.conv1.bias", "model.conv2.bias"}
    for name, tensor in got.items():
        bias = expected.get(name.replace("norm", "conv").replace("running_mean", "bias"), torch.zeros(()))
        shift = bias if name.endswith("running_mean") else 0
        assert torch.allclose(tensor, expected[name] - shift, atol=1e-9, rtol=0), name
    assert lighter[2].values("train/loss") == pytest.approx(plain[2].values("train/loss"), abs=1e-9)
    assert lighter[2].values("val/loss") == pytest.approx(plain[2].values("val/loss"), abs=1e-9)
    assert not [details for kind, details in lighter[2].events if kind == "warning"]


def test_a_checkpoint_is_resumed_and_its_model_rebuilt(tmp_path: Path) -> None:
    _, whole, _ = fit(config(True), checkpoints=tmp_path / "whole")
    halves = tmp_path / "halves"
    fit(config(True, checkpoint={"every_n_steps": 5}, trainer__max_steps=5), checkpoints=halves)
    trainer, resumed, reporter = fit(config(True), checkpoints=halves)
    assert any(kind == "resumed" for kind, _ in reporter.events)
    assert resumed.weights_sha256 == whole.weights_sha256

    unknown: dict[str, Any] = {"run_id": "", "name": "", "status": "", "metrics": {}, "steps": 0, "weights_sha256": ""}
    unknown |= {"samples_per_second": 0, "peak_memory_bytes": 0, "wall_seconds": 0, "folder": Path()}
    model = RunResult(**unknown, checkpoint=resumed.checkpoint, config=config(True)).load_model()
    assert torch.equal(outputs(model, training=False), outputs(trainer.state.task.model, training=False))


class Deciding(Chain):
    """Its way depends on values, so that it cannot be traced."""

    def forward(self, inputs: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


def flat() -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(9), nn.Flatten(), nn.Linear(3, 4))


@pytest.mark.parametrize("model", [Deciding, flat])
def test_a_model_that_stays_whole_costs_a_warning(model: Any, golden: Any) -> None:
    assert remove_redundant_bias(model()).names == []
    _, _, reporter = fit(config(True, model__path=model, trainer__max_steps=1))
    ((_, details),) = [event for event in reporter.events if event[0] == "warning"]
    assert details["code"] == "no-effect"
    if model is flat:  # the other message ends in words of torch
        golden(details["message"])
