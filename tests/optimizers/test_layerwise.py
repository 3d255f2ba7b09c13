"""LARS, LAMB, NVLAMB and NovoGrad in training: their fields, their state on disk, and what a step costs."""

import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.config.loading import validate
from paceline.config.registry import components
from paceline.engine.build import build_trainer
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import load_optimizer, optimizer_tensors, optimizer_values
from paceline.errors import ConfigError
from paceline.optimizers._lamb import LAMB
from paceline.optimizers._lars import LARS
from paceline.optimizers._novograd import NovoGrad
from paceline.optimizers.base import OptimizerConfig
from support.toys import CLASSES, FEATURES, fit, net, toy_config

NAMES = ["lars", "lamb", "nvlamb", "novograd"]
WAITS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal"}


def config(name: str, **fields: Any) -> OptimizerConfig:
    made = components("paceline.optimizers")[name].model_validate({"name": name, **fields})
    assert isinstance(made, OptimizerConfig)
    return made


def model(width: int = 6) -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width * 4, 5)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(trained: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(step))
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + step % 3)
        optimizer.zero_grad()
        trained(inputs.to(memory_format=torch.channels_last)).square().sum().backward()
        optimizer.step()


# What is handed over


def test_lars_takes_every_field() -> None:
    held = list(model().parameters())
    optimizer = config("lars", momentum=0.8, trust_coefficient=0.01, weight_decay=0.2).build(held, 0.3, False)
    assert isinstance(optimizer, LARS)
    (group,) = optimizer.param_groups
    assert group.pop("params") == held
    assert group == {"lr": 0.3, "momentum": 0.8, "trust_coefficient": 0.01, "weight_decay": 0.2, "layerwise": True}


@pytest.mark.parametrize("name", ["lamb", "nvlamb"])
def test_lamb_takes_every_field(name: str) -> None:
    held = list(model().parameters())
    optimizer = config(name, beta1=0.8, beta2=0.95, eps=1e-5, weight_decay=0.2).build(held, 0.3, False)
    assert isinstance(optimizer, LAMB)
    (group,) = optimizer.param_groups
    assert group.pop("params") == held
    assert group.pop("prenormalize") == (name == "nvlamb")
    assert group == {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.2, "layerwise": True}


def test_novograd_takes_every_field() -> None:
    held = list(model().parameters())
    optimizer = config("novograd", beta1=0.8, beta2=0.9, eps=1e-5, weight_decay=0.2).build(held, 0.3, False)
    assert isinstance(optimizer, NovoGrad)
    (group,) = optimizer.param_groups
    assert group.pop("params") == held
    assert group == {"lr": 0.3, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.2}


@pytest.mark.parametrize(
    ("fields", "code", "key"),
    [
        ({"name": "lars", "momentum": 1.0}, "out-of-range", "optimizer.momentum"),
        ({"name": "lars", "trust_coefficient": 0.0}, "out-of-range", "optimizer.trust_coefficient"),
        ({"name": "lars", "beta1": 0.9}, "unknown-key", "optimizer.beta1"),
        ({"name": "lamb", "beta2": 1.0}, "out-of-range", "optimizer.beta2"),
        ({"name": "lamb", "eps": 0.0}, "out-of-range", "optimizer.eps"),
        ({"name": "lamb", "momentum": 0.9}, "unknown-key", "optimizer.momentum"),
        ({"name": "nvlamb", "lr": -1.0}, "out-of-range", "optimizer.lr"),
        ({"name": "nvlamb", "weight_decay": -0.1}, "out-of-range", "optimizer.weight_decay"),
        ({"name": "novograd", "beta1": float("nan")}, "not-finite", "optimizer.beta1"),
        ({"name": "novograd", "eps": "small"}, "wrong-type", "optimizer.eps"),
        *(({"name": name, "fused": True}, "unknown-key", "optimizer.fused") for name in NAMES),
        *(
            ({"name": name, "weight_decay_exclude": "biases"}, "bad-choice", "optimizer.weight_decay_exclude")
            for name in [*NAMES, "sgd", "adamw"]
        ),
    ],
)
def test_a_bad_value_is_a_config_error(fields: dict[str, Any], code: str, key: str) -> None:
    tree = {"name": "run", "model": {"name": "cnn"}, "data": {"name": "mnist5k"}, "optimizer": fields}
    with pytest.raises(ConfigError) as caught:
        validate(tree)
    assert [(problem.code, problem.key) for problem in caught.value.problems] == [(code, key)]


# State


@pytest.mark.parametrize("exclude", ["none", "norms_and_biases"])
@pytest.mark.parametrize(("name", "fused"), [*((name, False) for name in NAMES), ("sgd", True), ("adamw", True)])
def test_a_saved_state_goes_on_to_the_bit(name: str, fused: bool, exclude: str) -> None:
    made = config(name, weight_decay=0.1, weight_decay_exclude=exclude)
    whole, first, second = model(), model(), model()
    train(whole, made.build(whole.parameters(), 0.01, fused), range(12))

    optimizer = made.build(first.parameters(), 0.01, fused)
    train(first, optimizer, range(7))
    file = save({name: tensor.contiguous() for name, tensor in optimizer_tensors(optimizer).items()})
    text = json.dumps(optimizer_values(optimizer))
    second.load_state_dict(first.state_dict())
    again = made.build(second.parameters(), 0.01, fused)
    load_optimizer(again, load(file), json.loads(text))
    train(second, again, range(7, 12))

    for mine, theirs in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, torch.zeros_like(mine))


@pytest.mark.parametrize("name", [*NAMES, "sgd", "adamw"])
def test_a_loaded_state_has_the_layout_of_its_parameter(name: str) -> None:
    trained = model()
    optimizer = config(name).build(trained.parameters(), 0.01, False)
    train(trained, optimizer, range(2))
    contiguous = {name: tensor.contiguous() for name, tensor in optimizer_tensors(optimizer).items()}
    load_optimizer(optimizer, contiguous, optimizer_values(optimizer))
    weight = next(trained.parameters())
    buffers = [value for value in optimizer.state[weight].values() if getattr(value, "ndim", 0) == 4]
    assert buffers
    assert all(buffer.stride() == weight.stride() for buffer in buffers)


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    optimizer = {"name": name, "weight_decay": 0.01, "weight_decay_exclude": "norms_and_biases"}
    experiment = toy_config(optimizer=optimizer)
    _, whole, _ = fit(experiment)
    assert build_trainer(experiment, Ranks.current(), MemoryReporter(stop_at_step=5), tmp_path).fit().stopped
    _, resumed, _ = fit(experiment, checkpoints=tmp_path)
    assert (whole.step, resumed.step) == (12, 12)
    assert resumed.weights_sha256 == whole.weights_sha256


# What a step costs


class Waiting(AssertionError):
    """Something read a value from the device."""


class NoWaiting(TorchDispatchMode):
    """Fails where a value is read from the device, and counts the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().partition(".")[0] in WAITS:
            raise Waiting(func.name())
        self.operations[func.name()] += 1
        return func(*args, **(kwargs or {}))


def step_of(name: str, copies: int, steps: int = 3) -> Counter[str]:
    """The operations of the last step over `copies` times three parameters."""
    held = [nn.Parameter(torch.ones(shape)) for shape in [(3, 2), (4,), (1,)] * copies]
    optimizer = config(name, weight_decay=0.1, weight_decay_exclude="norms_and_biases").build(held, 0.1, False)
    for _ in range(steps):
        for parameter in held:
            parameter.grad = torch.ones_like(parameter)
        with NoWaiting() as mode:
            optimizer.step()
    return mode.operations


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_step_waits_for_nothing(name: str, steps: int) -> None:
    assert step_of(name, copies=2, steps=steps)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_needs_no_values(name: str) -> None:
    held = [nn.Parameter(torch.ones(shape, device="meta")) for shape in [(3, 2), (4,), ()]]
    optimizer = config(name, weight_decay=0.1).build(held, 0.1, False)
    for _ in range(2):
        for parameter in held:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


@pytest.mark.parametrize("read", [torch.Tensor.item, bool, float, torch.Tensor.nonzero])
def test_waiting_would_be_seen(read: Any) -> None:
    with pytest.raises(Waiting), NoWaiting():
        read(torch.ones(()))


@pytest.mark.parametrize("name", NAMES)
def test_the_operations_of_a_step_do_not_grow_with_the_parameters(name: str) -> None:
    assert step_of(name, copies=2) == step_of(name, copies=20)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_two_dtypes_are_updated_alike(name: str) -> None:
    def weights(*dtypes: torch.dtype) -> list[nn.Parameter]:
        held = [nn.Parameter(torch.linspace(1, 2, 5).to(dtype)) for dtype in dtypes]
        optimizer = config(name, weight_decay=0.1).build(held, 0.1, False)
        for _ in range(3):
            for parameter in held:
                parameter.grad = torch.linspace(-1, 1, 5).to(parameter.dtype)
            optimizer.step()
        return held

    half, double = weights(torch.float32, torch.float64)
    same, _ = weights(torch.float64, torch.float64)
    torch.testing.assert_close(double, same)
    torch.testing.assert_close(half.double(), same.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_without_any_gradient_nothing_happens(name: str) -> None:
    held = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(4))]
    optimizer = config(name, weight_decay=0.1).build(held, 0.1, False)
    optimizer.step()
    assert all(torch.equal(parameter, torch.ones_like(parameter)) for parameter in held)
    assert not optimizer_tensors(optimizer)
    assert not optimizer_values(optimizer)


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_gradient_is_refused(name: str) -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = config(name).build(embedding.parameters(), 0.1, False)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="no sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_goes_on_like_the_original(name: str) -> None:
    held = [nn.Parameter(torch.linspace(1, 2, 6).reshape(3, 2)), nn.Parameter(torch.ones(4))]
    optimizer = config(name, weight_decay=0.1).build(held, 0.1, False)
    for number in range(4):
        if number == 2:
            again = deepcopy(optimizer)
        for parameter in held:
            parameter.grad = torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
        optimizer.step()
    (group,) = again.param_groups
    for _ in range(2):
        for parameter in group["params"]:
            parameter.grad = torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
        again.step()
    assert all(torch.equal(mine, other) for mine, other in zip(group["params"], held, strict=True))


def test_a_closure_is_called_with_gradients() -> None:
    weights = nn.Parameter(torch.ones(3))
    optimizer = config("lars").build([weights], 0.1, False)

    def closure() -> float:
        loss = weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    assert optimizer.step(closure) == 3.0
    assert not torch.equal(weights, torch.ones(3))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "lars", "lr": 1.0, "trust_coefficient": 0.02},
        {"name": "lamb", "lr": 0.05},
        {"name": "nvlamb", "lr": 0.05},
        {"name": "novograd", "lr": 0.02},
    ],
    ids=NAMES,
)
@pytest.mark.parametrize("exclude", ["none", "norms_and_biases"])
def test_training_converges(fields: dict[str, Any], exclude: str) -> None:
    made = config(weight_decay=0.001, weight_decay_exclude=exclude, **fields)
    torch.manual_seed(4)
    classifier = net()
    optimizer = made.build(classifier.parameters(), made.lr, False)
    targets = torch.arange(300) % CLASSES
    inputs = torch.randn(300, FEATURES) + 2 * torch.eye(CLASSES, FEATURES)[targets]
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(classifier(inputs), targets)
        loss.backward()
        optimizer.step()
    right = (classifier(inputs).argmax(dim=1) == targets).double().mean()
    assert loss < 0.4
    assert right > 0.85
