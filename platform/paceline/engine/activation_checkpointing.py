"""Activation checkpointing: keep a block's input for backward, and compute what is inside it again.

Chen et al. 2016, arXiv:1604.06174. `selective` keeps the results of what is slow to compute too, as Korthikanti et al.
2022 do (arXiv:2205.05198). `budget` is the compiler's own: see `compilation.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, reduce
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from paceline._compat.torch import NormBase, argument_names, attention_and_scaled_matmuls
from paceline.engine.blocks import find_blocks, match_blocks
from paceline.errors import ConfigError, Problem

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Context managers of a block's first pass and of its second pass."""

_aten = torch.ops.aten
_SLOW = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
    *attention_and_scaled_matmuls(),
}
"""Operations whose results `selective` keeps, in the form that autograd decomposes `linear` and the like into."""


def apply_activation_checkpointing(model: nn.Module, mode: str, patterns: Sequence[str] | None = None) -> list[str]:
    """Make the blocks of `model` recompute their activations in backward, and return the blocks' names.

    The modules stay where they are, so names in the state dict do not change. Gradients and buffers are those of the
    plain model: random state is restored for the second pass, and BatchNorm takes its statistics in the first only.

    Args:
        patterns: names of the blocks, with wildcards as in file names. None: the blocks that `find_blocks` finds.

    Raises:
        ConfigError: the model has no blocks, or none of such a name.
    """
    if mode not in ("full", "selective"):
        return []
    names = "trainer.activation_checkpointing_blocks"
    blocks = dict(_worthwhile(model) if patterns is None else match_blocks(model, patterns, names))
    if not blocks:
        reason = f"{type(model).__name__} has no blocks to checkpoint (children of nn.Sequential or nn.ModuleList)"
        hint = f"name its large modules in {names}"
        raise ConfigError([Problem("no-blocks", reason, "trainer.activation_checkpointing", hint=hint)])
    for block in blocks.values():
        forbid_in_place(block)
        block.forward = _checkpointed(block, mode)
    return list(blocks)


def _worthwhile(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of the model; a sequence of thin blocks is yielded as a whole, to be cut into larger parts.

    A linear layer with its ReLU keeps only the ReLU's output, which is the input of the next layer. A checkpoint
    around each such block would therefore save no memory.
    """
    for name, block in find_blocks(model):
        parent = name.rpartition(".")[0]
        sequence = model.get_submodule(parent)
        yield (parent, sequence) if name and _is_divisible(sequence) else (name, block)


def _is_divisible(module: nn.Module) -> bool:
    is_sequence = type(module).forward is nn.Sequential.forward
    return is_sequence and _count_parts(module) > 1 and all(map(_is_thin, module.children()))


def _is_thin(module: nn.Module) -> bool:
    layers = [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]
    return len(layers) <= 1


def _count_parts(sequence: nn.Module) -> int:
    return round(sqrt(sum(1 for _ in sequence.children())))  # Chen et al., section 4.1


def forbid_in_place(block: nn.Module) -> None:
    """Turn off in-place operation in all modules of a block.

    With a checkpoint, an in-place activation would overwrite the input of the second pass, or a kept result, and would
    then be applied to it twice.
    """
    for module in block.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


def _checkpointed(block: nn.Module, mode: str) -> Any:
    forward = block.forward
    first, *others = _parts(block)
    norms = [module for module in block.modules() if isinstance(module, NormBase) and module.track_running_stats]
    options, compiled_options = {"context_fn": partial(_CONTEXTS[mode], norms)}, _COMPILED_OPTIONS[mode]

    def run(*args: Any, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        # The compiler cannot trace a change of momentum, and need not: it recomputes only the values that gradients
        # depend on, and the statistics are not among them.
        chosen = compiled_options if torch.compiler.is_compiling() else options
        output = checkpoint(partial(first, **kwargs), *args, use_reentrant=False, **chosen)
        for part in others:
            output = checkpoint(part, output, use_reentrant=False, **chosen)
        return output

    return run


def _parts(block: nn.Module) -> list[Callable[..., Any]]:
    """Return the parts of a block to checkpoint: about sqrt(n) for a sequence of n thin layers, else the whole block.

    As one part, all activations of the sequence would be in memory again at the beginning of backward.
    """
    if not _is_divisible(block):
        return [block.forward]
    layers, count = list(block.children()), _count_parts(block)
    cuts = [len(layers) * index // count for index in range(count + 1)]
    return [partial(_through, layers[start:stop]) for start, stop in pairwise(cuts)]


def _through(layers: list[nn.Module], inputs: Any) -> Any:
    return reduce(lambda value, layer: layer(value), layers, inputs)


def _full(norms: list[NormBase]) -> Contexts:
    return nullcontext(), _without_statistics(norms, nullcontext())


def _selective(norms: list[NormBase]) -> Contexts:
    first, second = create_selective_checkpoint_contexts(keep_slow)  # type: ignore[no-untyped-call]
    return first, _without_statistics(norms, second)


def keep_slow(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Return torch's `CheckpointPolicy` for an operation: `selective` saves the results of slow operations.

    Attention with dropout is recomputed although it is slow. It draws from the same generator as the dropout after it,
    which would get other random numbers if attention drew none in the second pass.
    """
    keeps = operation in _SLOW and not _drops(operation, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool({**dict(zip(argument_names(operation), args, strict=False)), **kwargs}.get("dropout_p"))


_CONTEXTS: dict[str, Callable[[list[NormBase]], Contexts]] = {"full": _full, "selective": _selective}
_COMPILED_OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "selective": {"context_fn": partial(create_selective_checkpoint_contexts, keep_slow)},
}


@contextmanager
def _without_statistics(norms: list[NormBase], inner: AbstractContextManager[Any]) -> Iterator[None]:
    # Momentum 0 leaves the running statistics as they are, bit for bit, while the same tensors are saved for backward
    # as in the first pass (switching tracking off would save fewer, which torch's checkpoint refuses).
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, _, batches in before:
        # SyncBatchNorm insists on something to count in
        norm.num_batches_tracked = torch.zeros_like(batches) if isinstance(norm, nn.SyncBatchNorm) else None  # type: ignore[arg-type]
        norm.momentum = 0.0
    try:
        with inner:
            yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
