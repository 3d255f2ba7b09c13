"""LARS, LAMB, NVLAMB and NovoGrad: bad fields, their state, and what a step costs."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from paceline._compat.torch import TorchDispatchMode
from paceline.config.experiment import validate
from paceline.config.registry import components
from paceline.engine.optimizer_state import load_optimizer, optimizer_tensors, optimizer_values
from paceline.errors import ConfigError
from paceline.optimizers.base import OptimizerConfig
from support.refusals import refused
from support.toys import named

NAMES = ["lars", "lamb", "nvlamb", "novograd", "schedule_free_adamw"]
GROUP = "optimizer.param_groups.0"
WAITS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal"}


def config(name: str, **fields: Any) -> OptimizerConfig:
    made = components("paceline.optimizers")[name].model_validate({"name": name, **fields})
    assert isinstance(made, OptimizerConfig)
    return made


@pytest.mark.parametrize(
    ("fields", "code", "key"),
    [
        ({"name": "sgd", "lr": 0.0}, "out-of-range", "optimizer.lr"),
        ({"name": "sgd", "base_batch_size": 0}, "out-of-range", "optimizer.base_batch_size"),
        ({"name": "lars", "momentum": 1.0}, "out-of-range", "optimizer.momentum"),
        ({"name": "lars", "fused": True}, "unknown-key", "optimizer.fused"),
        ({"name": "lamb", "beta2": 1.0}, "out-of-range", "optimizer.beta2"),
        ({"name": "nvlamb", "weight_decay": -0.1}, "out-of-range", "optimizer.weight_decay"),
        ({"name": "novograd", "beta1": float("nan")}, "not-finite", "optimizer.beta1"),
        ({"name": "novograd", "eps": "small"}, "wrong-type", "optimizer.eps"),
        ({"param_groups": [{"match": "(", "lr_multiplier": 1.0}]}, "bad-value", f"{GROUP}.match"),
        ({"param_groups": [{"match": "a", "lr_multiplier": -1.0}]}, "out-of-range", f"{GROUP}.lr_multiplier"),
        ({"param_groups": [{"match": "a", "multiplier": 1.0}]}, "unknown-key", f"{GROUP}.multiplier"),
        ({"param_groups": [{"lr_multiplier": 1.0}]}, "missing-key", f"{GROUP}.match"),
        ({"name": "adamw", "weight_decay_exclude": "biases"}, "bad-choice", "optimizer.weight_decay_exclude"),
    ],
)
def test_a_bad_value_is_a_config_error(fields: dict[str, Any], code: str, key: str) -> None:
    tree = {
        "name": "run",
        "model": {"name": "cnn"},
        "data": {"name": "mnist5k"},
        "optimizer": {"name": "sgd", **fields},
    }
    assert [(problem.code, problem.key) for problem in refused(ConfigError, validate, tree).problems] == [(code, key)]


@pytest.mark.parametrize("name", [*NAMES, "sgd", "adamw", "muon"])
def test_a_loaded_state_has_the_layout_of_its_parameter(name: str) -> None:
    weight = nn.Parameter(torch.randn(6, 3, 3, 3).to(memory_format=torch.channels_last))
    optimizer = config(name).build({"weight": weight}, 0.01, False)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    contiguous = {name: tensor.contiguous() for name, tensor in optimizer_tensors(optimizer).items()}
    load_optimizer(optimizer, contiguous, optimizer_values(optimizer))
    buffers = [value for value in optimizer.state[weight].values() if getattr(value, "ndim", 0) == 4]
    assert buffers
    assert all(buffer.stride() == weight.stride() for buffer in buffers)


class NoWaiting(TorchDispatchMode):
    """Fails where a value is read from the device, and counts the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.name().partition(".")[0] not in WAITS
        self.operations[func.name()] += 1
        return func(*args, **(kwargs or {}))


def step_of(name: str, copies: int, device: str = "cpu") -> Counter[str]:
    """The operations of the last of three steps over `copies` times three parameters."""
    held = [nn.Parameter(torch.ones(shape, device=device)) for shape in [(3, 2), (4,), (1,)] * copies]
    optimizer = config(name, weight_decay=0.1, weight_decay_exclude="norms_and_biases").build(named(held), 0.1, False)
    for _ in range(3):
        for parameter in held:
            parameter.grad = torch.ones_like(parameter)
        with NoWaiting() as mode:
            optimizer.step()
    return mode.operations


@pytest.mark.parametrize("name", NAMES)
def test_a_step_reads_no_value_and_launches_as_much_for_any_number_of_parameters(name: str) -> None:
    with pytest.raises(AssertionError), NoWaiting():
        torch.ones(()).item()
    assert step_of(name, copies=2) == step_of(name, copies=20)
    assert step_of(name, copies=2, device="meta")


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_two_dtypes_are_updated_alike(name: str) -> None:
    def weights(*dtypes: torch.dtype) -> list[nn.Parameter]:
        held = [nn.Parameter(torch.linspace(1, 2, 5).to(dtype)) for dtype in dtypes]
        optimizer = config(name, weight_decay=0.1).build(named(held), 0.1, False)
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
def test_missing_and_sparse_gradients(name: str) -> None:
    """Without any gradient nothing happens; a sparse one is refused."""
    embedding = nn.Embedding(4, 2, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = config(name, weight_decay=0.1).build(dict(embedding.named_parameters()), 0.1, False)
    optimizer.step()
    assert embedding.weight.equal(before)
    assert (optimizer_tensors(optimizer), optimizer_values(optimizer)) == ({}, {})
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
