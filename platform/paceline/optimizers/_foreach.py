"""Shared code of the optimizers that update lists of tensors with torch's `_foreach_*` operations.

On CUDA, such an operation runs a few kernels for all tensors of the list; the one that applies a ratio to each tensor
runs one kernel per tensor. Nothing here waits for the device: norms, ratios and the flag by which fp16 loss scaling
skips the step stay on it.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline._compat.torch import (
    SkipsOverflow,
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

Number = float | Tensor
"""A factor or count of all tensors of a list: Python's, or float64 on the device where a step may be skipped."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes."""


class ForeachOptimizer(SkipsOverflow, Optimizer):
    """An update rule for parameters that are alike; those without a gradient are left alone.

    Where a loss scaler calls `step`, the rule is computed even if a gradient is not finite, but with gradients of zero,
    decays of 1 and rates of 0, which leave weights and state as they are: only the device knows yet that the step is
    skipped.
    """

    COUNTERS: ClassVar[dict[str, type]] = {"step": int}
    """Names and types of the numbers in a parameter's state that count its updates."""
    _taken: int | Tensor = 1
    """0 in a step that is skipped, else 1: on the device (float64) where a loss scaler calls `step`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [(parameters, group) for group in self.param_groups for parameters in self._alike(group["params"])]
        grad_scale, found_inf = self.loss_scaling()
        self._taken = 1 if found_inf is None else (found_inf == 0).double()
        for parameters, _ in found:
            self._prepare(gradients_of(parameters), grad_scale)
        self._begin_step()
        for parameters, group in found:
            self._update(parameters, gradients_of(parameters), group)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state with Python's counts, as without a loss scaler. Waits for the device where they are on it."""
        for state in self.state.values():
            for name, kind in self.COUNTERS.items():
                if isinstance(state.get(name), Tensor):
                    state[name] = kind(state[name])
        return super().state_dict()

    def _begin_step(self) -> None:
        """Called before the updates of a step."""

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one group that share device, dtype and number of updates.

        `group` holds the options of the group; its `lr` is that of this step.
        """
        raise NotImplementedError

    def _alike(self, parameters: Iterable[Tensor]) -> list[list[Tensor]]:
        """The parameters that have a gradient, in lists of one device, dtype and number of updates.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
        """
        found: dict[tuple[Any, ...], list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                if parameter.grad.is_sparse:
                    raise RuntimeError("this optimizer takes no sparse gradients: make the embedding dense, or use sgd")
                if parameter.is_complex():
                    raise RuntimeError("this optimizer takes no complex parameters: use sgd or adamw")
                # a count on the device is hashed by its identity: parameters of one history share it
                counts = map(self.state[parameter].get, self.COUNTERS)
                found.setdefault((parameter.device, parameter.dtype, *counts), []).append(parameter)
        return list(found.values())

    def _prepare(self, gradients: list[Tensor], grad_scale: Tensor | None) -> None:
        """Unscale the gradients in place unless that is done, and set them to zero if the step is skipped."""
        if grad_scale is not None:
            foreach_mul_(gradients, grad_scale.double().reciprocal().to(gradients[0]))
        if isinstance(self._taken, Tensor):
            # times 0.0, infinity would be NaN: multiply the bits as integers
            dtype = _INTEGERS[gradients[0].element_size()]
            bits = [gradient.view(dtype) for gradient in gradients]
            foreach_mul_(bits, self._taken.to(bits[0]))

    def _decay(self, factor: float) -> Number:
        """The factor, or 1 if the step is skipped."""
        return factor * self._taken + (1 - self._taken)

    def _mask_(self, tensors: list[Tensor]) -> None:
        """Set the tensors to zero if the step is skipped."""
        if isinstance(self._taken, Tensor):
            multiply_(tensors, self._taken)

    def _masked(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors, or zeros if the step is skipped; leaves them as they are."""
        return multiplied(tensors, self._taken) if isinstance(self._taken, Tensor) else tensors

    def _state_tensors(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The state `name` of each parameter, of the parameter's shape; zeros at first."""
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if name not in state:
                state[name] = torch.zeros_like(parameter)
        return [state[name] for state in states]

    def _count(self, parameters: list[Tensor]) -> Number:
        """The number of this update of parameters that are alike, from 1; a step that is skipped is not counted."""
        states = [self.state[parameter] for parameter in parameters]
        before: Number = states[0].get("step", 0)
        after = before + self._taken
        for state in states:
            state["step"] = after
        return before + 1

    def _adam_directions(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> list[Tensor]:
        """Adam's direction of each parameter, with bias corrections, plus `weight_decay` times the parameter.

        Zeros if the step is skipped.
        """
        beta1, beta2 = group["betas"]
        means, squares = self._state_tensors(parameters, "exp_avg"), self._state_tensors(parameters, "exp_avg_sq")
        count = self._count(parameters)
        lerp_(means, gradients, (1 - beta1) * self._taken)
        multiply_(squares, self._decay(beta2))
        foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = list(foreach_div(squares, like(squares, 1 - beta2**count)))
        foreach_sqrt_(roots)
        foreach_add_(roots, group["eps"])
        directions = list(foreach_mul(parameters, group["weight_decay"]))
        add_quotients_(directions, means, roots, 1 / (1 - beta1**count))
        self._mask_(directions)
        return directions


# Operations with one number for all tensors, Python's or on the device


def like(tensors: list[Tensor], number: Number) -> Any:
    """The number with the dtype and device of the tensors, if it is one on the device: their operations need that."""
    return number.to(tensors[0]) if isinstance(number, Tensor) else number


def multiplied(tensors: list[Tensor], factor: Number) -> list[Tensor]:
    """The tensors times the factor."""
    return list(foreach_mul(tensors, like(tensors, factor)))


def multiply_(tensors: list[Tensor], factor: Number) -> None:
    """Multiply the tensors by the factor."""
    foreach_mul_(tensors, like(tensors, factor))


def lerp_(tensors: list[Tensor], ends: list[Tensor], weight: Number) -> None:
    """Move the tensors towards the ends by the weight; by one of 0 they keep their values."""
    # there is no operation for one weight on the device
    one = like(tensors, weight)
    foreach_lerp_(tensors, ends, [one] * len(tensors) if isinstance(one, Tensor) else one)


def add_quotients_(tensors: list[Tensor], numerators: list[Tensor], denominators: list[Tensor], factor: Number) -> None:
    """Add the factor times each quotient to the tensors."""
    if isinstance(factor, Tensor):  # the operation takes numbers from the host only
        numerators, factor = multiplied(numerators, factor), 1.0
    foreach_addcdiv_(tensors, numerators, denominators, value=factor)


# Gradients and norms


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
