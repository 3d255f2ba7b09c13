"""Layer-wise adaptive moments, with and without NVIDIA's normalisation of the gradient."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from paceline._compat.torch import foreach_add_, foreach_addcmul_, foreach_div
from paceline.optimizers._foreach import ForeachOptimizer, gradients_of, norms, trust_ratios


class LAMB(ForeachOptimizer):
    """LAMB as in algorithm 2 of You et al. 2019, arXiv:1904.00962, with a parameter for a layer and phi(z) = z.

    m     = beta1 m + (1 - beta1) g
    v     = beta2 v + (1 - beta2) g^2
    u     = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
    ratio = |w| / |u|, or 1 where either of the two is 0
    w     = w - lr ratio u

    t counts the updates of the one parameter. With `prenormalize` (NVLAMB) g is the gradient divided by the norm of the
    whole model's gradient, so that its size says nothing; a gradient of 0 stays 0.

    Args:
        parameters: the parameters, or groups of them. A group with `layerwise` false has the ratio 1.
        lr: learning rate of the groups that have none of their own.
        betas: beta1 and beta2, in [0, 1).
        eps: > 0.
        weight_decay: >= 0.
        prenormalize: whether this is NVLAMB.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        prenormalize: bool,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "layerwise": True}
        super().__init__(parameters, {**options, "prenormalize": prenormalize})

    def _begin_step(self) -> None:
        self._total_norm: Tensor | None = None
        if self.defaults["prenormalize"]:
            # over all groups: the ones without a trust ratio are part of the model, too
            total = get_total_norm(gradients_of(each for group in self.param_groups for each in group["params"]))
            self._total_norm = torch.where(total > 0, total, 1.0)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if self._total_norm is not None:
            gradients = list(foreach_div(gradients, self._total_norm.to(gradients[0])))
        updates = self._adam_directions(parameters, gradients, group)
        if group["layerwise"]:
            ratios = trust_ratios(norms(parameters), norms(updates))
            foreach_addcmul_(parameters, updates, ratios, value=-group["lr"])
        else:
            foreach_add_(parameters, updates, alpha=-group["lr"])
