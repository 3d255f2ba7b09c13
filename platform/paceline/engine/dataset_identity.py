"""Which data a run was trained on: name, size, and a fingerprint of a few samples."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from paceline.data.base import is_stream
from paceline.engine.loading import SlicedDataset, seed_everything
from paceline.engine.order import mix

SAMPLES = 16
"""Samples that enter the fingerprint, at most."""
DIGITS = 16


def identities(name: str, sets: Mapping[str, Any], num_workers: int = 0) -> dict[str, dict[str, Any]]:
    """By role, such as `training`: `name`, `size` (samples) and `fingerprint` of each set, as JSON values.

    A fingerprint is None when a sample cannot be loaded: training tells of that, if it ever gets to it.

    Args:
        name: of all of them.
        sets: by role.
        num_workers: as for training. With loader processes the samples are loaded in one, since a data set may open
            files when it is first asked for a sample, and what is open here would be shared by all processes.
    """
    found = _Fingerprints(list(sets.values()))
    fingerprints = _in_a_process(found) if num_workers else [found[place] for place in range(len(found))]
    return {
        role: {"name": name, "size": None if is_stream(dataset) else len(dataset), "fingerprint": each or None}
        for (role, dataset), each in zip(sets.items(), fingerprints, strict=True)
    }


def fingerprint(dataset: Any) -> str:
    """16 hexadecimal characters over the type, the length and up to 16 evenly spaced samples.

    The same for the same data, in every process and whatever the run's seed: a sample that draws random numbers draws
    the same ones. Changes no random generator, neither the global ones nor those that the data set has as attributes.
    """
    digest = sha256(f"{type(dataset).__module__}.{type(dataset).__qualname__} {len(dataset)}".encode())
    with _generators_kept(dataset):
        for index in spaced(len(dataset)):
            seed_everything(mix(0, index))
            _add(digest, _sample(dataset, index))
    return digest.hexdigest()[:DIGITS]


def spaced(size: int) -> list[int]:
    """Indices from the first sample to the last one, evenly spaced."""
    count = min(size, SAMPLES)
    return [place * (size - 1) // max(count - 1, 1) for place in range(count)]


def _sample(dataset: Any, index: int) -> Any:
    if isinstance(dataset, SlicedDataset) and not hasattr(dataset, "__getitem__"):
        return dataset.batch(torch.tensor([index]), 0, 0)
    return dataset[index]


def _add(digest: Any, value: Any) -> None:
    """Take in a sample, or a part of one: types, shapes and bytes."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        digest.update(f"tensor {value.dtype} {list(value.shape)};".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        digest.update(f"array {value.dtype} {list(value.shape)};".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)};".encode())
        for key, item in value.items():
            digest.update(f"{key!r}:".encode())
            _add(digest, item)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        digest.update(f"row {len(value)};".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, bool | int | float | complex | str | bytes | None):
        digest.update(f"{type(value).__name__} {value!r};".encode())
    elif hasattr(value, "tobytes"):  # such as a picture of PIL
        digest.update(type(value).__name__.encode() + value.tobytes())
    else:  # what it prints may name its place in memory
        digest.update(type(value).__name__.encode())


@contextmanager
def _generators_kept(dataset: Any) -> Iterator[None]:
    """Random numbers go on afterwards as if the body had drawn none."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    own = [(each, _state(each)) for each in getattr(dataset, "__dict__", {}).values() if _is_generator(each)]
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        for generator, state in own:
            _put_back(generator, state)


def _is_generator(value: Any) -> bool:
    return isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator | np.random.RandomState):
        return generator.get_state()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.getstate()


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.setstate(state)


class _Fingerprints(Dataset[str]):
    """Those of several data sets, in the form that a loader process takes; empty for one that fails."""

    def __init__(self, sets: Sequence[Any]) -> None:
        self.sets = sets

    def __len__(self) -> int:
        return len(self.sets)

    def __getitem__(self, index: int) -> str:
        try:
            return fingerprint(self.sets[index])
        except Exception:  # whatever the data set's own code raises
            return ""


def _in_a_process(found: _Fingerprints) -> list[str]:
    # with a generator of its own: a loader draws its seed from the global one
    return list(DataLoader(found, batch_size=None, num_workers=1, generator=torch.Generator()))
