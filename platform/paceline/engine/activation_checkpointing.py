"""Activation checkpointing: keep a block's input for backward, and compute what is inside it again.

Chen et al. 2016, arXiv:1604.06174.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def apply_activation_checkpointing(model: nn.Module, mode: str) -> list[str]:
    """Make the blocks of `model` recompute their activations in backward; returns the blocks' names.

    The modules stay where they are, so names in the state dict do not change. Gradients and buffers are those of the
    plain model: random state is restored for the second pass, and BatchNorm takes its statistics in the first only.

    Raises:
        ValueError: the model has no blocks to checkpoint.
    """
    if mode == "none":
        return []
    blocks = dict(find_blocks(model))
    if not blocks:
        raise ValueError(
            "activation_checkpointing: the model has no blocks (children of nn.Sequential or nn.ModuleList)"
        )
    for block in blocks.values():
        block.forward = _checkpointed(block)
    return list(blocks)


def find_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model's repeated parts: the children with parameters of its outermost sequences.

    A sequence whose children are plain layers is one block itself, since a checkpoint around a single layer keeps
    as much as it saves.
    """
    for name, module in model.named_children():
        if not isinstance(module, nn.Sequential | nn.ModuleList):
            yield from ((f"{name}.{inner}", block) for inner, block in find_blocks(module))
            continue
        nested = [(f"{name}.{inner}", child) for inner, child in module.named_children() if any(child.children())]
        if nested:
            yield from nested
        elif isinstance(module, nn.Sequential) and any(True for _ in module.parameters()):
            yield name, module


def _checkpointed(block: nn.Module) -> Any:
    forward = block.forward
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _without_statistics(norms)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not block.training:
            return forward(*args, **kwargs)
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, context_fn=contexts)

    return run


@contextmanager
def _without_statistics(norms: list[_BatchNorm]) -> Iterator[None]:
    # Momentum 0 leaves the running statistics as they are, bit for bit, while the same tensors are saved for backward
    # as in the first pass (switching tracking off would save fewer, which torch's checkpoint refuses).
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
