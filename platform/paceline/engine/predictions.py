"""Predictions of a data set: each rank writes its part, file by file, so that none holds all of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from paceline.engine.batches import fields_of, is_dataclass
from paceline.engine.order import MicroBatch
from paceline.errors import EnvironmentFault, UnusableCode
from paceline.tasks.base import TaskOutput

PART_BYTES = 64 << 20
"""A part is written once it is this large."""
Tensors = dict[str, torch.Tensor]


def write_predictions(
    outputs: Iterable[tuple[MicroBatch, TaskOutput]], folder: Path, rank: int, on_part: Callable[[Path], object]
) -> int:
    """Write what a task gives for one rank's samples, in their order, and return the number of samples.

    Each part is a safetensors file of `predictions` and, where the task gives them, `targets`, shape [samples, ...];
    sorted by name, the parts of all ranks are in the order of the data set.

    Args:
        on_part: called with each file that is complete.

    Raises:
        UnusableCode: the task gives no predictions, or not one for each sample.
        EnvironmentFault: they cannot be written.
    """
    writer = _PartWriter(folder, rank, on_part)
    for micro_batch, output in outputs:
        writer.add(per_sample(output, len(micro_batch.ids)))
    writer.flush()
    return writer.samples


def per_sample(output: TaskOutput, samples: int) -> Tensors:
    """Predictions and targets of a batch by name, each of shape [samples, ...].

    Those in a mapping, a sequence or a dataclass get names such as `predictions.boxes` and `predictions.0`.

    Raises:
        UnusableCode: there are no predictions, or not one for each sample, or two have the same name, or one is not a
            dense tensor.
    """
    predictions, targets = (_tensors(getattr(output, root), root) for root in ("predictions", "targets"))
    if not predictions:
        raise UnusableCode(
            "the task gives no predictions: set predictions of the TaskOutput that its forward returns in evaluation; "
            "for a LightningModule, use load_model()",
            "no-predictions",
        )
    found = {**predictions, **targets}
    for name, tensor in found.items():
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise UnusableCode(
                f"{name} is not a dense tensor (it is sparse, nested, quantized or without data), which no file of "
                "predictions holds. Give a dense one, such as tensor.to_dense()",
                "predictions-not-dense",
                name=name,
            )
        if not tensor.dim() or tensor.shape[0] != samples:
            shape = list(tensor.shape)
            raise UnusableCode(
                f"{name} has shape {shape} for {samples} samples, so it is not known which of it belongs to which "
                "sample. Give tensors whose first dimension is the batch, with padding if needed",
                "predictions-not-per-sample",
                name=name,
                shape=shape,
                samples=samples,
            )
    return found


def _tensors(value: Any, root: str) -> Tensors:
    found: Tensors = {}
    for name, tensor in _named(value, root):
        if name in found:
            raise UnusableCode(
                f"two tensors have the name {name}, of which one would be lost. Rename a key",
                "predictions-same-name",
                name=name,
            )
        if tensor is not None:
            found[name] = tensor
    return found


def _named(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor | None]]:
    if value is None or isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(each, f"{name}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, each in enumerate(value):
            yield from _named(each, f"{name}.{index}")
    elif is_dataclass(value):
        for key, each in fields_of(value):
            yield from _named(each, f"{name}.{key}")
    else:
        raise UnusableCode(
            f"{name} is a {type(value).__name__}: give a tensor, or tensors in mappings and sequences",
            "predictions-not-tensors",
            name=name,
            returned=type(value).__name__,
        )


class _PartWriter:
    """Collects batches until they fill a part. A batch of other shapes (padded to another length) begins a new one."""

    def __init__(self, folder: Path, rank: int, on_part: Callable[[Path], object]) -> None:
        self.samples = 0
        self._folder = folder
        self._rank = rank
        self._on_part = on_part
        self._parts = 0
        self._batches: list[Tensors] = []
        self._bytes = 0
        self._form: dict[str, Any] = {}

    def add(self, tensors: Tensors) -> None:
        form = {name: (each.dtype, each.shape[1:]) for name, each in tensors.items()}
        if form != self._form:
            self.flush()
            self._form = form
        batch = {name: each.detach().cpu() for name, each in tensors.items()}
        self._batches.append(batch)
        self._bytes += sum(each.nbytes for each in batch.values())
        self.samples += next(iter(batch.values())).shape[0]
        if self._bytes >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._batches:
            return
        names = self._batches[0]
        whole = {name: torch.cat([batch[name] for batch in self._batches]).contiguous() for name in names}
        file = self._folder / f"{self._rank:06d}-{self._parts:08d}.safetensors"
        try:
            save_file(whole, file)
        except (OSError, SafetensorError) as error:
            message = f"the predictions cannot be written to {self._folder}: {error}; make room there"
            raise EnvironmentFault(message, "output-not-usable", path=self._folder) from None
        self._on_part(file)
        self._parts += 1
        self._batches, self._bytes = [], 0
