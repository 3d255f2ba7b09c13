"""Steps that fp16's loss scaling skips: decided on the device, and without a trace in weights and state.

fp16 itself runs on CUDA alone; its scaler works on the CPU too.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from paceline._compat.torch import TorchDispatchMode
from paceline.config.registry import components
from paceline.engine.optimizer_state import load_optimizer, optimizer_tensors, optimizer_values
from support.toys import named

NAMES = ["lars", "lamb", "nvlamb", "novograd", "muon", "schedule_free_adamw"]
SHAPES = [(4, 3), (3, 2, 2), (5,), ()]
LATE = 0
"""Index of a parameter without a gradient in every third step: it has fewer updates than the others."""
INF, NAN = float("inf"), float("nan")


class Reads(TorchDispatchMode):
    """Counts the values that are read from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    """Parameters of several shapes, the last two of which Muon leaves to AdamW."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for number, shape in enumerate(SHAPES):
            self.register_parameter(f"p{number}", nn.Parameter(torch.randn(shape, generator=generator)))


class Training:
    """An optimizer and its scaler; the scale is a power of two, so that scaling changes no bit."""

    def __init__(self, name: str, is_scaled: bool = True, max_grad_norm: float | None = None) -> None:
        self.model = Net()
        self.weights = list(self.model.parameters())
        excluded = {} if name == "muon" else {"weight_decay_exclude": "norms_and_biases"}
        config: Any = components("paceline.optimizers")[name].model_validate(
            {"name": name, "weight_decay": 0.1, **excluded}
        )
        self.optimizer: Optimizer = config.build(named(self.weights), 0.05, False, self.model)
        self.scaler = torch.amp.GradScaler("cpu", enabled=is_scaled, growth_interval=1000)
        self.max_grad_norm = max_grad_norm

    def step(self, number: int, bad: float | None = None) -> None:
        """Take the step of a number, with a gradient that holds `bad`; no value is read from the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * (1 + number % 3)
        generator = torch.Generator().manual_seed(100 + number)
        gradients: list[Tensor | None] = [torch.randn(shape, generator=generator) for shape in SHAPES]
        if number % 3 == 1:
            gradients[LATE] = None
        with Reads() as reads:
            scale = self.scaler.scale(torch.ones(()))
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight.grad = None if gradient is None else gradient * scale
            if bad is not None:
                assert self.weights[1].grad is not None
                self.weights[1].grad[0, 1] = bad
            if self.max_grad_norm is not None:
                self.scaler.unscale_(self.optimizer)
                clip_grad_norm_(self.weights, self.max_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        assert reads.count == 0

    def run(self, steps: Sequence[int], bad: dict[int, float] | None = None) -> "Training":
        """Take the steps of some numbers; before those in `bad`, one with a bad gradient that is skipped."""
        for number in steps:
            if number in (bad or {}):
                self.step(number, (bad or {})[number])
            self.step(number)
        return self

    def contents(self) -> tuple[list[Tensor], dict[str, Tensor], dict[str, Any]]:
        """Copies of the weights, and all of the optimizer's state."""
        tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(self.optimizer).items()}
        return [weight.detach().clone() for weight in self.weights], tensors, optimizer_values(self.optimizer)


def assert_same(training: Training, other: Any) -> None:
    assert_equal(training.contents(), other.contents() if isinstance(other, Training) else other)


def assert_equal(one: Any, other: Any) -> None:
    """Bit for bit; 0 and -0 are the same number."""
    (weights, tensors, values), (other_weights, other_tensors, other_values) = one, other
    assert all(map(torch.equal, weights, other_weights))
    assert tensors.keys() == other_tensors.keys()
    assert [name for name, tensor in tensors.items() if not torch.equal(tensor, other_tensors[name])] == []
    assert values == other_values


@pytest.fixture(params=[None, 0.5], ids=["unclipped", "clipped"])
def max_grad_norm(request: pytest.FixtureRequest) -> float | None:
    limit: float | None = request.param
    return limit


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_a_skipped_step_leaves_weights_and_state_as_they_were(
    name: str, bad: float, max_grad_norm: float | None
) -> None:
    training = Training(name, max_grad_norm=max_grad_norm).run(range(4))
    before = training.contents()
    for number in (4, 5):
        training.step(number, bad)
        assert_same(training, before)


@pytest.mark.parametrize("name", NAMES)
def test_training_continues_as_if_skipped_steps_had_never_been_taken(name: str, max_grad_norm: float | None) -> None:
    """The first step is among them, and some in which a parameter has no gradient."""
    skipping = Training(name, max_grad_norm=max_grad_norm).run(range(9), bad={0: NAN, 3: INF, 4: INF, 7: NAN})
    assert_same(skipping, Training(name, max_grad_norm=max_grad_norm).run(range(9)))


@pytest.mark.parametrize("name", NAMES)
def test_without_an_overflow_loss_scaling_changes_no_bit(name: str, max_grad_norm: float | None) -> None:
    unscaled = Training(name, is_scaled=False, max_grad_norm=max_grad_norm).run(range(9))
    assert_same(Training(name, max_grad_norm=max_grad_norm).run(range(9)), unscaled)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_saved_after_a_skipped_step_is_resumed_exactly(name: str) -> None:
    first = Training(name).run(range(5), bad={1: INF, 4: INF})
    weights, tensors, values = first.contents()
    second = Training(name)
    second.scaler.load_state_dict(first.scaler.state_dict())
    with torch.no_grad():
        for weight, saved in zip(second.weights, weights, strict=True):
            weight.copy_(saved)
    load_optimizer(second.optimizer, tensors, values)
    assert_same(second.run(range(5, 9), bad={6: NAN}), first.run(range(5, 9)))
