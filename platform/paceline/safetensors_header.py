"""The header of a safetensors file: which tensors it holds, and where. Needs no torch."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

_LENGTH = struct.Struct("<Q")
"""A safetensors file begins with the length of its header."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a safetensors file."""

    dtype: str
    """Name of the number format, such as `F32`."""
    shape: tuple[int, ...]
    size_bytes: int
    begin: int = 0
    """Offset of its first byte in the file."""


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a file, by name."""
    with file.open("rb") as source:
        (length,) = _LENGTH.unpack(source.read(_LENGTH.size))
        header = json.loads(source.read(length))
    header.pop("__metadata__", None)
    start = _LENGTH.size + length
    return {
        name: TensorEntry(each["dtype"], tuple(each["shape"]), end - begin, start + begin)
        for name, each in header.items()
        for begin, end in [each["data_offsets"]]
    }


def lay_out(tensors: Mapping[str, TensorEntry]) -> tuple[bytes, dict[str, TensorEntry]]:
    """Lay out a file: its first bytes, and its tensors with their offsets, in the order of the file."""
    # as safetensors itself does, the widest numbers first, so that each tensor begins at a multiple of their width
    names = sorted(tensors, key=lambda name: (-_width(tensors[name]), name))
    header, offsets, end = {}, {}, 0
    for name in names:
        entry, offsets[name] = tensors[name], end
        end += entry.size_bytes
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offsets[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    start = _LENGTH.size + len(text)
    placed = {name: replace(tensors[name], begin=start + offsets[name]) for name in names}
    return _LENGTH.pack(len(text)) + text, placed


def _width(entry: TensorEntry) -> int:
    """Bytes of each number of a tensor; 0 for one without any."""
    count = prod(entry.shape)
    return entry.size_bytes // count if count else 0
