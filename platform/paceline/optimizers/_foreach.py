"""What the optimizers share whose rules are written over lists of tensors, with torch's `_foreach_*` operations.

On CUDA such an operation is a few kernels for all tensors of the list; the one that applies a ratio to each is a kernel
a tensor. Nothing here waits for the device: norms and ratios stay on it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline._compat.torch import (
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_div,
    foreach_lerp_,
    foreach_mul,
    foreach_mul_,
    foreach_norm,
    foreach_sqrt_,
)


class ForeachOptimizer(Optimizer):
    """An update rule for the parameters of one group, device and dtype; those without a gradient are left alone."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [(parameters, group) for group in self.param_groups for parameters in alike(group["params"])]
        self._begin_step()
        for parameters, group in found:
            self._update(parameters, gradients_of(parameters), group)
        return loss

    def _begin_step(self) -> None:
        """Called before the updates of a step."""

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters of one group that are alike. `group` holds its options, `lr` that of this step."""
        raise NotImplementedError

    def _state_tensors(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The state `name` of each parameter, of the parameter's shape; zeros at first."""
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if name not in state:
                state[name] = torch.zeros_like(parameter)
        return [state[name] for state in states]

    def _count(self, parameters: list[Tensor]) -> list[int]:
        """The number of this update of each parameter, from 1.

        Python's integers: the bias corrections are exact, and one operation takes those of all parameters.
        """
        states = [self.state[parameter] for parameter in parameters]
        for state in states:
            state["step"] = state.get("step", 0) + 1
        return [state["step"] for state in states]

    def _adam_directions(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> list[Tensor]:
        """Adam's direction of each parameter, with bias corrections, plus `weight_decay` times the parameter."""
        beta1, beta2 = group["betas"]
        means, squares = self._state_tensors(parameters, "exp_avg"), self._state_tensors(parameters, "exp_avg_sq")
        counts = self._count(parameters)
        foreach_lerp_(means, gradients, 1 - beta1)
        foreach_mul_(squares, beta2)
        foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = foreach_div(squares, [1 - beta2**count for count in counts])
        foreach_sqrt_(roots)
        foreach_add_(roots, group["eps"])
        directions = foreach_mul(parameters, group["weight_decay"])
        foreach_addcdiv_(directions, means, roots, [1 / (1 - beta1**count) for count in counts])
        return list(directions)


def alike(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """The parameters that have a gradient, in lists of one device and dtype.

    Raises:
        RuntimeError: a gradient is sparse, or a parameter complex.
    """
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                raise RuntimeError("this optimizer takes no sparse gradients: make the embedding dense, or use sgd")
            if parameter.is_complex():
                raise RuntimeError("this optimizer takes no complex parameters: use sgd or adamw")
            found.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(found.values())


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of the parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norms(tensors: list[Tensor]) -> Tensor:
    """The L2 norm of each tensor: shape [len(tensors)], on their device."""
    return torch.stack(foreach_norm(tensors))


def trust_ratios(numerators: Tensor, denominators: Tensor) -> list[Tensor]:
    """The quotient of each pair of numbers, 1 where either is 0: scalars on their device.

    With 0, weights that begin at zero would stay there.
    """
    ratios = torch.where((numerators > 0) & (denominators > 0), numerators / denominators, 1.0)
    return list(ratios.unbind())
