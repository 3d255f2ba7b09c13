"""Identity of the data that a run was trained on: name, size, and a fingerprint of a few samples."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from pydantic_core import PydanticSerializationError
from torch.utils.data import DataLoader, Dataset

from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig, is_stream
from paceline.engine.checkpoint_files import START_FROM_SCRATCH
from paceline.engine.loading import SlicedDataset
from paceline.engine.order import mix
from paceline.engine.seeding import seed_everything
from paceline.errors import ConfigError, Problem

SAMPLES = 16
"""Largest number of samples in the fingerprint."""
DIGITS = 16
KEY = "datasets"
"""Key of the data record in `state.json`."""


@dataclass(frozen=True)
class Contents:
    """Size of a data set, and fingerprint and field digests of a few of its samples."""

    size: int | None
    """Number of samples; None for a stream."""
    fingerprint: str | None
    """See `fingerprint`; None when a sample cannot be loaded."""
    fields: Mapping[str, str] | None
    """Digest of each field of the samples; None when they are not known to be the same in every process."""


def read_contents(sets: Mapping[str, Any], num_workers: int = 0, with_fields: bool = True) -> dict[str, Contents]:
    """Read a few samples of each data set, by its role, such as `training`.

    A sample that cannot be loaded is not an error here: training raises it if it reaches that sample.

    Args:
        num_workers: as for training. If above 0, the samples are loaded in one loader process: a data set may open
            files at the first sample, and files opened in this process would be shared by all processes.
        with_fields: also digest each field. The samples are then read twice: if they differ, they draw from random
            generators that are not known here, and `fields` is None.
    """
    looks = _Looks(list(sets.values()), with_fields)
    found = _in_a_process(looks) if num_workers else [looks[place] for place in range(len(looks))]
    return dict(zip(sets, found, strict=True))


def identities(name: str, contents: Mapping[str, Contents]) -> dict[str, dict[str, Any]]:
    """Return `name`, `size` (samples) and `fingerprint` of each role, such as `training`, as JSON values.

    Args:
        name: name shared by all sets.
        contents: contents by role.
    """
    return {role: {"name": name, "size": each.size, "fingerprint": each.fingerprint} for role, each in contents.items()}


class DataRecord:
    """Record of a run's data in its checkpoints, so that the run is not resumed with other samples by mistake.

    Args:
        config: config of the run. If a section that decides on the samples (data, model, task, seed) has changed, the
            data differs on purpose and is not compared.
        contents: contents by role.
    """

    def __init__(self, config: ExperimentConfig, contents: Mapping[str, Contents]) -> None:
        self._config = _digest_of(config)
        self._contents = contents

    def values(self) -> dict[str, Any]:
        """Return the record as JSON values for a checkpoint."""
        sets = {role: {"size": each.size, "fields": each.fields} for role, each in self._contents.items()}
        return {KEY: {"config": self._config, **sets}}

    def require_same(self, values: Mapping[str, Any]) -> None:
        """Compare with the record in a checkpoint, as far as both are known.

        Raises:
            ConfigError: a set has another number of samples, or one of the samples read has other contents.
        """
        saved = values.get(KEY, {})
        if not self._config or saved.get("config") != self._config:
            return
        differing = {
            role: difference
            for role, own in self._contents.items()
            if role in saved and (difference := _difference(saved[role]["size"], saved[role]["fields"], own))
        }
        if differing:
            told = "; ".join(f"the {role} set {difference}" for role, difference in differing.items())
            reason = f"the checkpoint was made with other data: {told}"
            raise ConfigError([Problem("resume", reason, "data", hint=START_FROM_SCRATCH)])


def _difference(size: int | None, fields: Mapping[str, str] | None, own: Contents) -> str:
    if size != own.size:
        return f"had {_count(size)} samples and has {_count(own.size)}"
    if fields is None or own.fields is None:
        return ""
    names = (name for name in [*fields, *own.fields] if fields.get(name) != own.fields.get(name))
    name = next(names, None)
    return "" if name is None else f"differs in field {name} of its samples"


def _count(size: int | None) -> str:
    return "an unknown number of" if size is None else f"{size:,}"


def _digest_of(config: ExperimentConfig) -> str:
    """Return a digest of the settings that decide on the samples, not on how they are loaded.

    Empty if the config cannot be serialised.
    """
    try:
        tree = config.model_dump(mode="json", include={"data", "model", "task", "seed"})
    except PydanticSerializationError:  # a Python object in args
        return ""
    data = {key: value for key, value in tree["data"].items() if key not in DataConfig.model_fields}
    return sha256(json.dumps({**tree, "data": data}, sort_keys=True).encode()).hexdigest()[:DIGITS]


def fingerprint(dataset: Any) -> str:
    """Return 16 hexadecimal characters over the type, the length and up to 16 evenly spaced samples.

    The fingerprint is the same for the same data, in every process and with any seed of the run: a sample that draws
    random numbers draws the same ones. Changes neither the global random generators nor the data set's attributes that
    are generators.
    """
    with _generators_kept(dataset):
        return _fingerprint_and_fields(dataset)[0]


def _fingerprint_and_fields(dataset: Any) -> tuple[str, dict[str, str]]:
    """Return the fingerprint, and the digest of each field of the samples."""
    digest = sha256(f"{type(dataset).__module__}.{type(dataset).__qualname__} {len(dataset)}".encode())
    fields: dict[str, Any] = {}
    for index in spaced(len(dataset)):
        seed_everything(mix(0, index))
        sample = _sample(dataset, index)
        _add(digest, sample)
        for name, value in _fields_of(sample):
            _add(fields.setdefault(name, sha256()), value)
    return digest.hexdigest()[:DIGITS], {name: each.hexdigest()[:DIGITS] for name, each in fields.items()}


def _fields_of(sample: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(sample, Mapping):
        yield from ((repr(key), value) for key, value in sample.items())
    elif isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        yield from ((str(place), value) for place, value in enumerate(sample))
    else:
        yield "0", sample


def spaced(size: int) -> list[int]:
    """Return evenly spaced indices from the first sample to the last one."""
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
    """Restore the random generators afterwards, as if the body had drawn no numbers."""
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


class _Looks(Dataset[Contents]):
    """Contents of several data sets, in the form that a loader process takes."""

    def __init__(self, sets: Sequence[Any], with_fields: bool) -> None:
        self.sets = sets
        self.with_fields = with_fields

    def __len__(self) -> int:
        return len(self.sets)

    def __getitem__(self, index: int) -> Contents:
        dataset = self.sets[index]
        if is_stream(dataset):  # a look at its samples would consume them
            return Contents(None, None, None)
        size = len(dataset)
        try:
            with _generators_kept(dataset):
                found, fields = _fingerprint_and_fields(dataset)
                is_stable = self.with_fields and _fingerprint_and_fields(dataset)[1] == fields
                return Contents(size, found, fields if is_stable else None)
        except Exception:  # the data set's code may raise anything
            return Contents(size, None, None)


def _in_a_process(looks: _Looks) -> list[Contents]:
    # with a generator of its own: a loader draws its seed from the global one
    return list(DataLoader(looks, batch_size=None, num_workers=1, generator=torch.Generator()))
