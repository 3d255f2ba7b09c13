"""AdamW whose average of the weights takes the place of a schedule."""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline._compat.torch import (
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_mul,
    foreach_sqrt_,
)
from paceline.optimizers._foreach import ForeachOptimizer, Number, lerp_, multiply_


class ScheduleFreeAdamW(ForeachOptimizer):
    """Schedule-Free AdamW as in algorithm 1 of Defazio et al. 2024, arXiv:2405.15682.

    y = (1 - beta1) z + beta1 x               g is the gradient at y
    v = beta2 v + (1 - beta2) g^2
    r = lr sqrt(1 - beta2^t)                  lr with the schedule's warmup
    z = z - r g / (sqrt(v) + eps) - r weight_decay y
    c = r^2 / (sum of all r^2 so far)
    x = (1 - c) x + c z

    t counts the updates of the one parameter. The parameters hold y during training and x after `eval()`; z, v, t and
    the sum are the state.

    Args:
        parameters: the parameters, or groups of them.
        lr: learning rate of the groups that have none of their own.
        betas: beta1 in (0, 1), beta2 in [0, 1).
        eps: > 0.
        weight_decay: >= 0.
    """

    COUNTERS: ClassVar[dict[str, type]] = {"step": int, "square_sum": float}

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._holds_average = False

    @torch.no_grad()
    def eval(self) -> None:
        """Put the averaged weights x into the parameters, in place, for evaluation."""
        if not self._holds_average:
            self._blend(lambda beta1: 1 - 1 / beta1)
            self._holds_average = True

    @torch.no_grad()
    def train(self) -> None:
        """Put the weights y of training back, up to rounding."""
        if self._holds_average:
            self._blend(lambda beta1: 1 - beta1)
            self._holds_average = False

    def _blend(self, share_of_z: Any) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if "z" in self.state[parameter]:  # without an update so far, x, y and z are the same
                    parameter.lerp_(self.state[parameter]["z"], share_of_z(group["betas"][0]))

    def _begin_step(self) -> None:
        if self._holds_average:
            raise RuntimeError("the parameters hold the averaged weights: call train() before step()")

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if "z" not in state:
                state["z"] = parameter.detach().clone(memory_format=torch.preserve_format)
        origins, squares = [state["z"] for state in states], self._state_tensors(parameters, "exp_avg_sq")
        # 0 if the step is skipped, and so is the share: nothing moves
        rate = group["lr"] * (1 - beta2 ** self._count(parameters)) ** 0.5 * self._taken
        share = _share(rate, states)
        multiply_(squares, self._decay(beta2))
        foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = foreach_mul(squares, 1.0)
        foreach_sqrt_(roots)
        foreach_add_(roots, group["eps"])
        steps = list(foreach_mul(parameters, group["weight_decay"]))
        foreach_addcdiv_(steps, gradients, roots)
        multiply_(steps, rate)
        # x is in none of the tensors: y after the step is (1 - c) y + c z - (1 - beta1 (1 - c)) step
        lerp_(parameters, origins, share)
        foreach_add_(origins, steps, alpha=-1)
        multiply_(steps, 1 - beta1 * (1 - share))
        foreach_add_(parameters, steps, alpha=-1)


def _share(rate: Number, states: list[dict[str, Any]]) -> Number:
    """The weight c of the newest z in the average of parameters that are alike; counts the step."""
    square_sum: Number = states[0].get("square_sum", 0.0) + rate**2
    for state in states:
        state["square_sum"] = square_sum
    if isinstance(square_sum, Tensor):
        return torch.where(square_sum > 0, rate**2 / square_sum, 0.0)
    return rate**2 / square_sum if square_sum else 0.0
