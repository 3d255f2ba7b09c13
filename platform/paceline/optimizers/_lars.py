"""Layer-wise adaptive rate scaling."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from paceline._compat.torch import foreach_add, foreach_add_, foreach_addcmul_
from paceline.optimizers._foreach import ForeachOptimizer, multiply_, norms, trust_ratios


class LARS(ForeachOptimizer):
    """LARS as in algorithm 1 of You et al. 2017, arXiv:1708.03888, with a parameter for a layer.

    ratio = trust_coefficient |w| / (|g| + weight_decay |w|), or 1 where either of the two is 0
    v     = momentum v + lr ratio (g + weight_decay w)
    w     = w - v

    The learning rate is inside of the velocity v, unlike in `torch.optim.SGD`.

    Args:
        parameters: the parameters, or groups of them. A group with `layerwise` false has the ratio 1.
        lr: learning rate of the groups that have none of their own.
        momentum: share of the velocity that is kept, in [0, 1).
        trust_coefficient: the paper's eta, > 0.
        weight_decay: >= 0.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        trust_coefficient: float,
        weight_decay: float,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "trust_coefficient": trust_coefficient, "weight_decay": weight_decay}
        super().__init__(parameters, {**options, "layerwise": True})

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        velocities = self._state_tensors(parameters, "momentum_buffer")
        directions = list(foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        self._mask_(directions)
        multiply_(velocities, self._decay(group["momentum"]))
        if group["layerwise"]:
            ratios = _ratios(parameters, gradients, group["weight_decay"], group["trust_coefficient"])
            foreach_addcmul_(velocities, directions, ratios, value=group["lr"])
        else:
            foreach_add_(velocities, directions, alpha=group["lr"])
        foreach_add_(parameters, self._masked(velocities), alpha=-1)


def _ratios(
    parameters: list[Tensor], gradients: list[Tensor], weight_decay: float, trust_coefficient: float
) -> list[Tensor]:
    weights = norms(parameters)
    return trust_ratios(trust_coefficient * weights, norms(gradients) + weight_decay * weights)
