"""Gradients normalised layer by layer, with momentum."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from paceline._compat.torch import foreach_add_, foreach_addcdiv_
from paceline.optimizers._foreach import ForeachOptimizer, multiply_, norms


class NovoGrad(ForeachOptimizer):
    """NovoGrad as in algorithm 1 of Ginsburg et al. 2019, arXiv:1905.11286, with a parameter for a layer.

    v = beta2 v + (1 - beta2) |g|^2, or |g|^2 at the first gradient that is not zero: one number
    m = beta1 m + g / (sqrt(v) + eps) + weight_decay w
    w = w - lr m

    Args:
        parameters: the parameters, or groups of them.
        lr: learning rate of the groups that have none of their own.
        betas: beta1 and beta2, in [0, 1).
        eps: > 0.
        weight_decay: >= 0.
    """

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

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        means = self._state_tensors(parameters, "exp_avg")
        moments = self._second_moments(parameters, norms(gradients).square(), beta2)
        roots = list((moments.sqrt() + group["eps"]).unbind())
        multiply_(means, self._decay(beta1))
        foreach_add_(means, self._masked(parameters), alpha=group["weight_decay"])
        foreach_addcdiv_(means, gradients, roots)
        foreach_add_(parameters, self._masked(means), alpha=-group["lr"])

    def _second_moments(self, parameters: list[Tensor], squares: Tensor, beta2: float) -> Tensor:
        """The v of each parameter, given the squared norms of their gradients: shape [parameters], on their device."""
        states = [self.state[parameter] for parameter in parameters]
        nothing = squares.new_zeros(())
        before = torch.stack([state.get("second_moment", nothing) for state in states])
        # a gradient of zero is not a first gradient: the step after it would be 7 times too long
        moments = torch.where(before > 0, torch.lerp(before, squares, 1 - beta2), squares)
        if isinstance(self._taken, Tensor):
            moments = torch.where(self._taken.to(before) > 0, moments, before)
        for state, moment in zip(states, moments.unbind(), strict=True):
            state["second_moment"] = moment
        return moments
