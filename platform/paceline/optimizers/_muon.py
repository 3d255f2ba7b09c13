"""Momentum orthogonalized by Newton-Schulz iterations, with AdamW for what is not a hidden matrix."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from paceline._compat.torch import foreach_add, foreach_add_
from paceline.optimizers._foreach import ForeachOptimizer, multiply_

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
NORM_EPS = 1e-7
"""Keeps a gradient of zero at zero."""


class Muon(ForeachOptimizer):
    """Muon as in Jordan et al. 2024, kellerjordan.github.io/posts/muon.

    m = momentum m + g
    O = newton_schulz(g + momentum m)
    w = w - lr (sqrt(max(1, rows / columns)) O + weight_decay w)

    A weight of more than two dimensions is a matrix of its first dimension and all others together.

    Args:
        parameters: groups of parameters. One with `is_matrix` false is updated by AdamW instead, with the bias
            corrections of Kingma and Ba 2015, arXiv:1412.6980, and decoupled decay.
        lr: learning rate of the groups that have none of their own.
        momentum: in [0, 1).
        betas: AdamW's, in [0, 1).
        eps: AdamW's, > 0.
        weight_decay: >= 0, for both.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**options, "is_matrix": True})

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if not group["is_matrix"]:
            foreach_add_(parameters, self._adam_directions(parameters, gradients, group), alpha=-group["lr"])
            return
        momenta = self._state_tensors(parameters, "momentum_buffer")
        multiply_(momenta, self._decay(group["momentum"]))
        foreach_add_(momenta, gradients)
        directions = list(foreach_add(gradients, momenta, alpha=group["momentum"]))
        self._mask_(directions)
        multiply_(parameters, self._decay(1 - group["lr"] * group["weight_decay"]))
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.add_(orthogonalized(direction), alpha=-group["lr"])


def orthogonalized(direction: Tensor) -> Tensor:
    """`newton_schulz` of a direction, in its shape and dtype, times sqrt(max(1, rows / columns)).

    A direction that is cut up over ranks (a DTensor) is gathered first, since the iterations need the whole matrix;
    every rank computes the same and keeps its slice. Every rank must call it.
    """
    whole = direction.full_tensor() if hasattr(direction, "full_tensor") else direction
    matrix = whole.flatten(1)
    scale = max(1.0, matrix.shape[0] / max(1, matrix.shape[1])) ** 0.5
    result = newton_schulz(matrix).to(whole.dtype).mul_(scale).view(whole.shape)
    return _sliced(result, direction) if whole is not direction else result


def newton_schulz(matrix: Tensor) -> Tensor:
    """Roughly U V^T of the singular value decomposition U S V^T, with singular values of about 0.7 to 1.2.

    Args:
        matrix: shape [rows, columns]. float64 is computed in float64; anything else in bfloat16 on CUDA and in float32
            elsewhere.

    Returns:
        The same shape, in the dtype of the computation.
    """
    if matrix.dtype is not torch.float64:
        matrix = matrix.to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + NORM_EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(a * x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x)
    return x.T if is_tall else x


def _sliced(whole: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor  # only where there are DTensors: the import takes long

    # without a source rank nothing is sent
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def ids_without_matrix(model: nn.Module) -> set[int]:
    """`id` of the parameters that are not a hidden matrix: embeddings, and the last linear layer."""
    embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    return {id(parameter) for module in [*embeddings, *linear[-1:]] for parameter in module.parameters()}
