"""A file of predictions: put together from the parts that the workers wrote, and there only once it is complete.

`.safetensors`: the tensors `predictions` and `targets`. `.parquet`: the same as columns, beside the sample's `index`;
samples of one or more dimensions are nested lists.
"""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from paceline.durable import sync_folder
from paceline.errors import ConfigError, EnvironmentFault, Problem, UnusableCode
from paceline.places import place_of
from paceline.safetensors_header import TensorEntry, lay_out, read_header
from paceline.storage.address import is_address

if TYPE_CHECKING:
    import pyarrow
    import torch

ENDINGS = (".safetensors", ".parquet")
CHUNK_BYTES = 8 << 20
"""Number of bytes of a part that are in memory at once."""


@contextmanager
def complete_file(output: str | Path) -> Iterator[Path]:
    """Yield a file to write to in place of `output`; it gets that name at the end of the body.

    It is created at once, so that a place that cannot be written to is found first. It is removed if the body fails.

    Raises:
        ConfigError: the name has an unknown ending, or is an address.
        EnvironmentFault: the file cannot be written.
    """
    if is_address(output):
        reason = "predictions are written to a folder of this machine, not to an object store"
        raise ConfigError([Problem("output-is-an-address", reason, "output", hint="name a file, and copy it there")])
    final = place_of(output)
    if final.suffix not in ENDINGS:
        reason = f"{final.name!r} does not say what kind of file it is to be"
        raise ConfigError([Problem("unknown-ending", reason, "output", hint=f"write {' or '.join(ENDINGS)}")])
    if final.is_dir():
        raise EnvironmentFault(f"{final} is a folder: name a file", "output-not-usable", path=final)
    made = [each for each in final.parents if not each.exists()]
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}{final.suffix}")
    try:
        with _writable(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
        yield temporary
        with _writable(final):
            temporary.replace(final)
            sync_folder(final.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        for each in made:
            with suppress(OSError):
                each.rmdir()
        raise


@contextmanager
def _writable(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the predictions cannot be written to {place}: {error.strerror or error}; choose another place"
        raise EnvironmentFault(message, "output-not-usable", path=place, errno=error.errno) from error


def merge(parts: Sequence[Path], file: Path) -> dict[str, list[int]]:
    """Write the parts, in this order, as one file of the kind that its name ends with; wait until it is on the disk.

    Returns:
        The shape of each tensor, or column, by name; -1 for a dimension that differs from sample to sample.

    Raises:
        UnusableCode: the predictions have different forms in different parts.
        EnvironmentFault: the file cannot be written.
    """
    forms = [read_header(part) for part in parts]
    _require_alike(forms)
    with _writable(file.parent), file.open("wb") as target:
        if file.suffix == ".parquet":
            _write_parquet(parts, target)
        else:
            _write_safetensors(parts, forms, target)
        target.flush()
        os.fsync(target.fileno())
    samples = sum(next(iter(form.values())).shape[0] for form in forms)
    return {name: [samples, *_common([form[name].shape[1:] for form in forms])] for name in _names(forms[0])}


def _names(form: Mapping[str, TensorEntry]) -> list[str]:
    """Return the names in the order of the columns: predictions first."""
    return sorted(form)


def _common(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]


def _require_alike(forms: Sequence[Mapping[str, TensorEntry]]) -> None:
    kinds = [{name: (entry.dtype, len(entry.shape)) for name, entry in form.items()} for form in forms]
    for kind in kinds:
        if kind != kinds[0]:
            first, other = (
                ", ".join(f"{name} {dtype} with {dims} dimensions" for name, (dtype, dims) in sorted(each.items()))
                for each in (kinds[0], kind)
            )
            raise UnusableCode(
                f"the task gives different predictions for different batches: {first}, and {other}. Give the same "
                "tensors for every batch",
                "predictions-differ",
            )


def _write_safetensors(parts: Sequence[Path], forms: Sequence[Mapping[str, TensorEntry]], target: IO[bytes]) -> None:
    """Write the parts' bytes one after the other, tensor by tensor, below one header."""
    for name in _names(forms[0]):
        shapes = sorted({form[name].shape[1:] for form in forms})
        if len(shapes) > 1:
            raise UnusableCode(
                f"{name} has shape {list(shapes[0])} for some samples and {list(shapes[1])} for others, which no "
                "tensor holds. Write a .parquet file",
                "predictions-shape",
                name=name,
                shapes=[list(each) for each in shapes],
            )
    whole = {}
    for name, first in forms[0].items():
        shape = (sum(form[name].shape[0] for form in forms), *first.shape[1:])
        whole[name] = TensorEntry(first.dtype, shape, sum(form[name].size_bytes for form in forms))
    header, placed = lay_out(whole)
    target.write(header)
    for name in placed:
        for part, form in zip(parts, forms, strict=True):
            _copy(part, form[name], target)


def _copy(part: Path, entry: TensorEntry, target: IO[bytes]) -> None:
    with part.open("rb") as source:
        source.seek(entry.begin)
        left = entry.size_bytes
        while left:
            chunk = source.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError(f"{part} ends too early")
            target.write(chunk)
            left -= len(chunk)


def _write_parquet(parts: Sequence[Path], target: IO[bytes]) -> None:
    import pyarrow
    from pyarrow import parquet
    from safetensors.torch import load_file

    writer, index = None, 0
    try:
        for part in parts:
            tensors = load_file(part)
            samples = len(next(iter(tensors.values())))
            columns = {"index": pyarrow.array(range(index, index + samples), pyarrow.int64())}
            columns |= {name: _column(name, tensors[name]) for name in sorted(tensors)}
            table = pyarrow.table(columns)
            writer = writer or parquet.ParquetWriter(target, table.schema)
            writer.write_table(table)
            index += samples
    finally:
        if writer is not None:
            writer.close()


def _column(name: str, tensor: "torch.Tensor") -> "pyarrow.Array":
    """Return a column of numbers, or of nested lists of them. Not all readers of Parquet know its 16-bit floats."""
    import pyarrow
    import torch

    if tensor.is_complex():
        message = f"{name} are complex numbers, which Parquet does not have. Write a .safetensors file"
        raise UnusableCode(message, "predictions-dtype", name=name)
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    values = pyarrow.array(tensor.flatten().numpy())
    for depth in range(tensor.dim() - 1, 0, -1):
        lists = tensor.shape[:depth].numel()
        offsets = torch.arange(lists + 1, dtype=torch.int32) * tensor.shape[depth]  # a part is far below 2^31 numbers
        values = pyarrow.ListArray.from_arrays(offsets.numpy(), values)
    return values
