"""Sizes of layers that tensor cores cannot fill."""

from collections.abc import Iterator

from torch import nn

from paceline.linting.finding import Fault
from paceline.linting.subject import Subject

UNIT = 8
"""16-bit products run on tensor cores at full speed where all sizes are multiples of this."""
VOCABULARY_UNIT = 64
LARGE_LAYER = 2**16
"""Weights of the smallest layer that is worth a word."""
LARGE_VOCABULARY = 4096


def not_multiples_of_8(subject: Subject) -> Iterator[Fault]:
    """Wide layers with odd sizes, in 16 bit."""
    if not (subject.is_16_bit and subject.may_use_gpu):
        return
    found = []
    for name, layer in subject.modules(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):
        sizes = layer.weight.shape[:2]
        wide = (
            layer.weight.numel() >= LARGE_LAYER and min(sizes) >= VOCABULARY_UNIT and getattr(layer, "groups", 1) == 1
        )
        if wide and max(sizes) < LARGE_VOCABULARY and any(size % UNIT for size in sizes):
            found.append((name, sizes))
    if found:
        name, (out, into) = found[0]
        also = f", as {len(found) - 1} more layers have such" if len(found) > 1 else ""
        reason = f"its sizes {into} and {out} are not both multiples of {UNIT}{also}: tensor cores run partly empty"
        yield Fault(name, reason, f"write {_up(into, UNIT)} and {_up(out, UNIT)}")


def vocabulary_not_multiple_of_64(subject: Subject) -> Iterator[Fault]:
    """The largest product of a language model, in 16 bit."""
    if not (subject.is_16_bit and subject.may_use_gpu):
        return
    for name, layer in subject.modules(nn.Embedding, nn.Linear):
        size = layer.weight.shape[0]
        if size >= LARGE_VOCABULARY and size % VOCABULARY_UNIT:
            better = _up(size, VOCABULARY_UNIT)
            reason = f"its {size:,} classes or tokens are not a multiple of {VOCABULARY_UNIT}, which is slow"
            yield Fault(name, reason, f"pad them to {better:,}")
            return


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
