"""The mean of gradients over the ranks, where DDP does not make it: for a task that steps its optimizers itself."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from paceline.engine.dist_context import DistContext
from paceline.errors import UnusableCode

BUCKET_BYTES = 25 * 2**20
"""Gradients that are exchanged together, as in DDP."""


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], share: float | torch.Tensor, ranks: DistContext) -> None:
    """Replace the gradients by their sum over the ranks, each times its rank's share. Every rank must call it.

    A gradient that some ranks lack counts as zero there; one that all ranks lack stays absent.

    Args:
        parameters: the same on all ranks, in the same order.
        share: this rank's weight over that of all ranks; with 0 its gradients do not count, whatever they are.

    Raises:
        UnusableCode: a gradient is sparse.
    """
    if ranks.world_size == 1:
        return
    counted = not isinstance(share, float) or share > 0
    has_gradient = [counted and parameter.grad is not None for parameter in parameters]
    counts = torch.tensor(has_gradient, dtype=torch.float32, device=ranks.device)
    sums = [(bucket, _summed(bucket, share, ranks)) for bucket in _buckets(parameters)]
    ranks.sum(counts)
    for bucket, flat in sums:
        parts = torch.split(flat, [parameter.numel() for parameter in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view(parameter.shape))
    if not all(has_gradient):  # only then is the device waited for
        for parameter, count in zip(parameters, counts.tolist(), strict=True):
            if not count:
                parameter.grad = None


def _summed(bucket: Sequence[nn.Parameter], share: float | torch.Tensor, ranks: DistContext) -> torch.Tensor:
    if isinstance(share, float) and not share:
        return ranks.sum(torch.zeros(sum(map(torch.numel, bucket)), dtype=bucket[0].dtype, device=bucket[0].device))
    flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in bucket])
    return ranks.sum(flat.mul_(share))


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise UnusableCode(
            "a task that steps its optimizers itself has a sparse gradient, which is not averaged over workers. Make "
            "the embedding dense (sparse=False), or train with one worker",
            "sparse-gradient",
        )
    return parameter.grad


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The parameters in lists of one device and dtype, of about `BUCKET_BYTES`."""
    kinds: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for members in kinds.values():
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in members:
            bucket.append(parameter)
            size += parameter.numel() * parameter.element_size()
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
