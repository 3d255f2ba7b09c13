"""LARS, LAMB, NVLAMB and NovoGrad against the papers' rules, written out number by number in Python's floats.

Each reference can be given a fault, the name of a mistake that is easy to make; the optimizer must then differ from it.
"""

from collections.abc import Sequence
from math import fsum, sqrt
from typing import Any

import pytest
import torch
from torch import nn

from paceline.optimizers.base import OptimizerConfig
from paceline.optimizers.lamb import LAMBConfig
from paceline.optimizers.lars import LARSConfig
from paceline.optimizers.novograd import NovoGradConfig
from paceline.optimizers.nvlamb import NVLAMBConfig

Vector = list[float]

STEPS = 10
SHAPES = [(3, 4), (5,), (1,), (), (2, 3, 2, 2), (4, 2), (3, 3), (6,)]
ZERO_WEIGHTS, SOMETIMES, STILL = 5, 6, 7
"""Indices of the parameters that begin at zero, have no gradient in some steps, have one of zero in some."""
WITHOUT_GRADIENT, WITH_ZERO_GRADIENT = (0, 3, 4), (0, 5)
MOMENTUM, TRUST, BETA1, BETA2, EPS = 0.8, 0.02, 0.85, 0.9, 1e-3


def norm(vector: Sequence[float]) -> float:
    return sqrt(fsum(number * number for number in vector))


class Reference:
    """A rule over parameters that are flat lists. `plain` are the indices of those without decay and trust ratio."""

    def __init__(self, weights: list[Vector], decay: float, plain: frozenset[int], fault: str = "") -> None:
        self.weights = [list(vector) for vector in weights]
        self.states: list[dict[str, Any]] = [{} for _ in weights]
        self.decay = decay
        self.plain = plain
        self.fault = fault
        self.lr = 0.0

    def step(self, gradients: list[Vector | None], lr: float) -> None:
        self.lr = -lr if self.fault == "sign" else lr
        for index, gradient in enumerate(self.prepared(gradients)):
            weights = self.weights[index]
            if gradient is None and self.fault == "no gradient is a gradient of zero":
                gradient = [0.0] * len(weights)
            if gradient is None:
                if self.fault == "counts the steps without a gradient":
                    self.states[index]["t"] = self.states[index].get("t", 0) + 1
                continue
            decay = 0.0 if index in self.plain else self.decay
            self.weights[index] = self.updated(weights, gradient, self.states[index], decay, index in self.plain)

    def prepared(self, gradients: list[Vector | None]) -> list[Vector | None]:
        return gradients

    def updated(self, w: Vector, g: Vector, state: dict[str, Any], decay: float, is_plain: bool) -> Vector:
        raise NotImplementedError

    def ratio(self, numerator: float, denominator: float) -> float:
        if self.fault == "ratio upside down":
            numerator, denominator = denominator, numerator
        if numerator == 0 and self.fault == "zero weights stay":
            return 0.0
        return numerator / denominator if numerator > 0 and denominator > 0 else 1.0


class ReferenceLARS(Reference):
    def updated(self, w: Vector, g: Vector, state: dict[str, Any], decay: float, is_plain: bool) -> Vector:
        fault, lr = self.fault, self.lr
        direction = [gi + decay * wi for gi, wi in zip(g, w, strict=True)]
        weights_norm = norm([each for vector in self.weights for each in vector]) if fault == "one norm" else norm(w)
        denominator = norm(g) + decay * norm(w)
        if fault == "ratio without decay":
            denominator = norm(g)
        if fault == "norm of the decayed gradient":
            denominator = norm(direction)
        if fault == "direction without decay":
            direction = g
        ratio = self.ratio((1.0 if fault == "no trust coefficient" else TRUST) * weights_norm, denominator)
        if is_plain or fault == "no ratio":
            ratio = 1.0
        velocity = state.get("v", [0.0] * len(w))
        if fault == "no momentum":
            velocity = [0.0] * len(w)
        inner, outer = lr * ratio, 1.0
        if fault == "learning rate outside of the velocity":
            inner, outer = ratio, lr
        if fault == "ratio outside of the velocity":
            inner, outer = lr, ratio
        state["v"] = [MOMENTUM * vi + inner * di for vi, di in zip(velocity, direction, strict=True)]
        return [wi - outer * vi for wi, vi in zip(w, state["v"], strict=True)]


class ReferenceLAMB(Reference):
    def updated(self, w: Vector, g: Vector, state: dict[str, Any], decay: float, is_plain: bool) -> Vector:
        fault = self.fault
        if fault == "decay in the gradient":
            g, decay = [gi + decay * wi for gi, wi in zip(g, w, strict=True)], 0.0
        beta1, beta2 = (BETA2, BETA1) if fault == "betas exchanged" else (BETA1, BETA2)
        zeros = [0.0] * len(w)
        t = state["t"] = state.get("t", 0) + 1
        m = state["m"] = [beta1 * mi + (1 - beta1) * gi for mi, gi in zip(state.get("m", zeros), g, strict=True)]
        v = state["v"] = [beta2 * vi + (1 - beta2) * gi * gi for vi, gi in zip(state.get("v", zeros), g, strict=True)]
        correction1 = 1.0 if fault == "no first bias correction" else 1 - beta1**t
        correction2 = 1.0 if fault == "no second bias correction" else 1 - beta2**t
        roots = [sqrt(vi / correction2) + EPS for vi in v]
        if fault == "eps inside of the root":
            roots = [sqrt(vi / correction2 + EPS) for vi in v]
        if fault == "eps before the correction":
            roots = [(sqrt(vi) + EPS) / sqrt(correction2) for vi in v]
        adam = [mi / correction1 / root for mi, root in zip(m, roots, strict=True)]
        u = [ai + decay * wi for ai, wi in zip(adam, w, strict=True)]
        ratio = 1.0 if is_plain or fault == "no ratio" else self.ratio(norm(w), norm(u))
        if fault == "decay outside of the norm":
            ratio = 1.0 if is_plain else self.ratio(norm(w), norm(adam))
        return [wi - self.lr * ratio * ui for wi, ui in zip(w, u, strict=True)]


class ReferenceNVLAMB(ReferenceLAMB):
    def prepared(self, gradients: list[Vector | None]) -> list[Vector | None]:
        if self.fault == "no prenormalisation":
            return gradients
        counting = [
            vector for index, vector in enumerate(gradients) if self.fault != "norm of some" or index not in self.plain
        ]
        total = norm([number for vector in counting if vector is not None for number in vector])
        if self.fault == "prenormalises only long gradients":
            total = max(total, 1.0)
        totals = [norm(vector or [0.0]) if self.fault == "each by itself" else total for vector in gradients]
        return [
            None if vector is None else [number / (total or 1.0) for number in vector]
            for vector, total in zip(gradients, totals, strict=True)
        ]


class ReferenceNovoGrad(Reference):
    def updated(self, w: Vector, g: Vector, state: dict[str, Any], decay: float, is_plain: bool) -> Vector:
        fault = self.fault
        if fault == "decay in the gradient":
            g, decay = [gi + decay * wi for gi, wi in zip(g, w, strict=True)], 0.0
        square = [gi**2 for gi in g] if fault == "a moment for each element" else [norm(g) ** 2] * len(g)
        if fault == "norm without its square":
            square = [norm(g)] * len(g)
        first = [0.0] * len(g) if fault == "second moment begins at zero" else square
        begun = bool(state) and (any(state["v"]) or fault == "a gradient of zero is a first one")
        v = [BETA2 * vi + (1 - BETA2) * si for vi, si in zip(state["v"], square, strict=True)] if begun else first
        if not state and fault == "second moment begins at zero":
            v = [(1 - BETA2) * si for si in square]
        m = state.get("m", [0.0] * len(w))
        if fault == "forgets the second moment":
            v = square
        roots = [sqrt(vi + EPS) if fault == "eps inside of the root" else sqrt(vi) + EPS for vi in v]
        inner = 0.0 if fault == "decay outside of the momentum" else decay
        share = 1 - BETA1 if fault == "averages the gradient" else 1.0
        m = [BETA1 * mi + share * (gi / root + inner * wi) for mi, gi, root, wi in zip(m, g, roots, w, strict=True)]
        state.update(v=v, m=m)
        return [wi - self.lr * (mi + (decay - inner) * wi) for wi, mi in zip(w, m, strict=True)]


BETAS: dict[str, Any] = {"beta1": BETA1, "beta2": BETA2, "eps": EPS}
RULES: dict[str, tuple[type[OptimizerConfig], dict[str, Any], type[Reference]]] = {
    "lars": (LARSConfig, {"momentum": MOMENTUM, "trust_coefficient": TRUST}, ReferenceLARS),
    "lamb": (LAMBConfig, BETAS, ReferenceLAMB),
    "nvlamb": (NVLAMBConfig, BETAS, ReferenceNVLAMB),
    "novograd": (NovoGradConfig, BETAS, ReferenceNovoGrad),
}

ANY_FAULTS = ["sign", "no gradient is a gradient of zero"]
LAMB_FAULTS = [
    *ANY_FAULTS,
    "no first bias correction",
    "no second bias correction",
    "counts the steps without a gradient",
    "betas exchanged",
    "eps inside of the root",
    "eps before the correction",
    "decay in the gradient",
    "decay outside of the norm",
    "no ratio",
    "ratio upside down",
    "zero weights stay",
]
FAULTS = {
    "lars": [
        *ANY_FAULTS,
        "ratio without decay",
        "norm of the decayed gradient",
        "direction without decay",
        "no ratio",
        "ratio upside down",
        "one norm",
        "no trust coefficient",
        "zero weights stay",
        "no momentum",
        "learning rate outside of the velocity",
        "ratio outside of the velocity",
    ],
    "lamb": LAMB_FAULTS,
    "nvlamb": [*LAMB_FAULTS, "no prenormalisation", "prenormalises only long gradients", "each by itself"],
    "novograd": [
        *ANY_FAULTS,
        "a moment for each element",
        "norm without its square",
        "second moment begins at zero",
        "a gradient of zero is a first one",
        "forgets the second moment",
        "eps inside of the root",
        "averages the gradient",
        "decay in the gradient",
        "decay outside of the momentum",
    ],
}


def flat(tensor: torch.Tensor) -> Vector:
    return [float(number) for number in tensor.detach().flatten()]


def first_weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    drawn[ZERO_WEIGHTS].zero_()
    return [nn.Parameter(tensor) for tensor in drawn]


def gradients(step: int) -> list[torch.Tensor | None]:
    """Those of a step, shorter than 1 all together in some of them."""
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


def trained(name: str, **fields: Any) -> list[Vector]:
    """The weights after each step of the optimizer, one after the other."""
    cls, settings, _ = RULES[name]
    weights = first_weights()
    optimizer = cls.model_validate({"name": name, **settings, **fields}).build(weights, lr=7.0, fused=False)
    history = []
    for step in range(STEPS):
        for parameter, gradient in zip(weights, gradients(step), strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        history.append([number for parameter in weights for number in flat(parameter)])
    return history


def expected(name: str, decay: float, plain: frozenset[int] = frozenset(), fault: str = "") -> list[Vector]:
    """The same of the reference."""
    reference = RULES[name][2]([flat(parameter) for parameter in first_weights()], decay, plain, fault)
    history = []
    for step in range(STEPS):
        reference.step([None if each is None else flat(each) for each in gradients(step)], learning_rate(step))
        history.append([number for vector in reference.weights for number in vector])
    return history


def largest_difference(mine: list[Vector], theirs: list[Vector]) -> float:
    pairs = zip([each for step in mine for each in step], [each for step in theirs for each in step], strict=True)
    return max(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", RULES)
def test_the_rule_is_the_papers(name: str, decay: float) -> None:
    assert largest_difference(trained(name, weight_decay=decay), expected(name, decay)) < 1e-12


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", ["lars", "lamb", "nvlamb"])
def test_excluded_parameters_have_no_decay_and_no_trust_ratio(name: str, decay: float) -> None:
    plain = frozenset(index for index, shape in enumerate(SHAPES) if len(shape) <= 1)
    mine = trained(name, weight_decay=decay, weight_decay_exclude="norms_and_biases")
    assert largest_difference(mine, expected(name, decay, plain)) < 1e-12
    assert largest_difference(mine, expected(name, decay)) > 1e-3
    if name == "nvlamb":
        assert largest_difference(mine, expected(name, decay, plain, "norm of some")) > 1e-6


def test_excluded_parameters_of_novograd_have_no_decay() -> None:
    plain = frozenset(index for index, shape in enumerate(SHAPES) if len(shape) <= 1)
    mine = trained("novograd", weight_decay=0.3, weight_decay_exclude="norms_and_biases")
    assert largest_difference(mine, expected("novograd", 0.3, plain)) < 1e-12
    assert largest_difference(mine, expected("novograd", 0.3)) > 1e-3


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults])
def test_a_mistake_in_the_rule_would_be_seen(name: str, fault: str) -> None:
    assert largest_difference(expected(name, 0.3), expected(name, 0.3, fault=fault)) > 1e-6
    assert largest_difference(trained(name, weight_decay=0.3), expected(name, 0.3, fault=fault)) > 1e-6


def test_lamb_and_nvlamb_differ() -> None:
    assert largest_difference(trained("lamb", weight_decay=0.3), trained("nvlamb", weight_decay=0.3)) > 1e-6
