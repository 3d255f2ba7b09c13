"""SGD, AdamW, LARS, LAMB, NVLAMB and NovoGrad against their rules, written out in Python's floats."""

from collections.abc import Sequence
from math import fsum, sqrt
from typing import Any

import pytest
import torch
from torch import nn

from paceline.config.registry import components
from paceline.optimizers.adamw import AdamWConfig
from paceline.optimizers.sgd import SGDConfig
from support.toys import named

Vector = list[float]

STEPS = 10
SHAPES = [(3, 4), (5,), (1,), (), (2, 3, 2, 2), (4, 2), (3, 3), (6,)]
ZERO_WEIGHTS, SOMETIMES, STILL = 5, 6, 7
"""Indices of the parameters that begin at zero, have no gradient in some steps, have one of zero in some."""
WITHOUT_GRADIENT, WITH_ZERO_GRADIENT = (0, 3, 4), (0, 5)
EXCLUDED = frozenset(index for index, shape in enumerate(SHAPES) if len(shape) <= 1)
MOMENTUM, TRUST, BETA1, BETA2, EPS = 0.8, 0.02, 0.85, 0.9, 1e-3


def norm(vector: Sequence[float]) -> float:
    return sqrt(fsum(number * number for number in vector))


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if numerator > 0 and denominator > 0 else 1.0


def lars(w: Vector, g: Vector, state: dict[str, Any], lr: float, decay: float, is_excluded: bool) -> Vector:
    trust = 1.0 if is_excluded else ratio(TRUST * norm(w), norm(g) + decay * norm(w))
    velocity = state.get("v", [0.0] * len(w))
    state["v"] = [MOMENTUM * v + lr * trust * (gi + decay * wi) for v, gi, wi in zip(velocity, g, w, strict=True)]
    return [wi - v for wi, v in zip(w, state["v"], strict=True)]


def lamb(w: Vector, g: Vector, state: dict[str, Any], lr: float, decay: float, is_excluded: bool) -> Vector:
    zeros = [0.0] * len(w)
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = [BETA1 * mi + (1 - BETA1) * gi for mi, gi in zip(state.get("m", zeros), g, strict=True)]
    v = state["v"] = [BETA2 * vi + (1 - BETA2) * gi * gi for vi, gi in zip(state.get("v", zeros), g, strict=True)]
    roots = [sqrt(vi / (1 - BETA2**t)) + EPS for vi in v]
    u = [mi / (1 - BETA1**t) / root + decay * wi for mi, root, wi in zip(m, roots, w, strict=True)]
    trust = 1.0 if is_excluded else ratio(norm(w), norm(u))
    return [wi - lr * trust * ui for wi, ui in zip(w, u, strict=True)]


def novograd(w: Vector, g: Vector, state: dict[str, Any], lr: float, decay: float, is_excluded: bool) -> Vector:
    square = norm(g) ** 2
    v = state["v"] = BETA2 * state["v"] + (1 - BETA2) * square if state.get("v") else square
    momenta = state.get("m", [0.0] * len(w))
    state["m"] = [BETA1 * m + gi / (sqrt(v) + EPS) + decay * wi for m, gi, wi in zip(momenta, g, w, strict=True)]
    return [wi - lr * m for wi, m in zip(w, state["m"], strict=True)]


BETAS: dict[str, Any] = {"beta1": BETA1, "beta2": BETA2, "eps": EPS}
RULES: dict[str, tuple[dict[str, Any], Any]] = {
    "lars": ({"momentum": MOMENTUM, "trust_coefficient": TRUST}, lars),
    "lamb": (BETAS, lamb),
    "nvlamb": (BETAS, lamb),
    "novograd": (BETAS, novograd),
}


def flat(tensor: torch.Tensor) -> Vector:
    return [float(number) for number in tensor.detach().flatten()]


def first_weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    drawn[ZERO_WEIGHTS].zero_()
    return [nn.Parameter(tensor) for tensor in drawn]


def gradients(step: int) -> list[torch.Tensor | None]:
    """The gradients of a step, shorter than 1 all together in some of them."""
    generator = torch.Generator().manual_seed(100 + step)
    size = (0.03, 1.0, 4.0)[step % 3]
    found: list[torch.Tensor | None] = [
        size * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES
    ]
    if step in WITHOUT_GRADIENT:
        found[SOMETIMES] = None
    if step in WITH_ZERO_GRADIENT:
        found[STILL] = torch.zeros(SHAPES[STILL], dtype=torch.float64)
    return found


def learning_rate(step: int) -> float:
    return 0.02 * (1 + step % 4)


def trained(name: str, **fields: Any) -> Vector:
    """The weights after each step of the optimizer, one after the other."""
    weights = first_weights()
    config = components("paceline.optimizers")[name].model_validate({"name": name, **RULES[name][0], **fields})
    optimizer = config.build(named(weights), lr=7.0, fused=False)  # type: ignore[attr-defined]
    history = []
    for step in range(STEPS):
        for parameter, gradient in zip(weights, gradients(step), strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        history += [number for parameter in weights for number in flat(parameter)]
    return history


def expected(name: str, decay: float, excluded: frozenset[int] = frozenset()) -> Vector:
    """The same by the rule."""
    weights = [flat(parameter) for parameter in first_weights()]
    states: list[dict[str, Any]] = [{} for _ in weights]
    history = []
    for step in range(STEPS):
        given = [None if each is None else flat(each) for each in gradients(step)]
        total = norm([number for vector in given for number in vector or []]) if name == "nvlamb" else 1.0
        for index, gradient in enumerate(given):
            if gradient is not None:
                scaled = [number / total for number in gradient]
                own = index in excluded
                arguments = scaled, states[index], learning_rate(step), 0.0 if own else decay, own
                weights[index] = RULES[name][1](weights[index], *arguments)
        history += [number for vector in weights for number in vector]
    return history


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", RULES)
def test_optimizer_follows_the_rule_of_its_paper(name: str, decay: float) -> None:
    """No decay and no trust ratio for excluded parameters; a missing gradient is no gradient of zero."""
    assert trained(name, weight_decay=decay) == pytest.approx(expected(name, decay), rel=1e-12, abs=1e-12)
    spared = trained(name, weight_decay=decay, weight_decay_exclude="norms_and_biases")
    assert spared == pytest.approx(expected(name, decay, EXCLUDED), rel=1e-12, abs=1e-12)
    if decay or name != "novograd":
        assert spared != pytest.approx(expected(name, decay), abs=1e-3)


def test_sgd_and_adamw_hand_every_field_to_torch() -> None:
    weights = named([nn.Parameter(torch.ones(2))])
    sgd = SGDConfig(name="sgd", momentum=0.8, nesterov=True, weight_decay=0.01).build(weights, 0.3, False)
    assert isinstance(sgd, torch.optim.SGD)
    assert sgd.param_groups[0].items() >= {"lr": 0.3, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}.items()
    adamw = AdamWConfig(name="adamw", beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2).build(weights, 0.3, True)
    assert isinstance(adamw, torch.optim.AdamW)
    wanted = {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "fused": True}
    assert adamw.param_groups[0].items() >= wanted.items()
    assert not sgd.param_groups[0]["fused"]


@pytest.mark.parametrize(
    ("rule", "batch", "scaled"),
    [("none", 1024, 0.2), ("linear", 1024, 0.8), ("linear", 64, 0.05), ("sqrt", 1024, 0.4), ("sqrt", 64, 0.1)],
)
def test_the_learning_rate_follows_the_batch(rule: str, batch: int, scaled: float) -> None:
    config = SGDConfig.model_validate({"name": "sgd", "lr": 0.2, "lr_scaling": rule, "base_batch_size": 256})
    assert config.scaled_lr(batch) == pytest.approx(scaled, rel=1e-12)
