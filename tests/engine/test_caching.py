"""Samples that are kept: batches stay the same to the bit, each sample is loaded once, and no random one is kept."""

import multiprocessing as mp
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch

from paceline.data._tensors import Pixels, TensorData
from paceline.data.augmentation import AugmentationConfig
from paceline.engine.build import build_trainer
from paceline.engine.caching import KeptSamples, SlicesOnDevice, StackedSamples, cached
from paceline.engine.dataset_identity import spaced
from paceline.engine.loading import BatchLoader, Fetcher, SeededFetcher, _tensors, one_ahead
from paceline.engine.order import DataOrder, MicroBatch
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.errors import EnvironmentFault, UnusableCode
from support.toys import Points, fit, points, toy_config

CPU = torch.device("cpu")
SEED = 3
SAMPLES = 150
"""More than one chunk."""


class Base:
    """A map-style data set of `SAMPLES` samples."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples


class Pair(NamedTuple):
    left: Any
    right: Any


class Nested(Base):
    def __getitem__(self, index: int) -> Any:
        number = torch.full((3, 2), float(index))
        counts: dict[str, Any] = defaultdict(list, row=[number, np.full(4, index, np.int16)])
        return {"pair": Pair(number.t(), index), "counts": counts, "flags": (index % 2 == 0, np.float32(index), 0.5)}


class Words(Base):
    def __getitem__(self, index: int) -> tuple[str, torch.Tensor]:
        return f"word {index}", torch.tensor(index)


class Ragged(Base):
    """Its collate function takes the samples apart, changes them in place, and draws."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": torch.arange(1000)[index : index + index % 5], "target": index}

    def collate_fn(self, samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, float]:
        targets = torch.tensor([sample.pop("target") for sample in samples])
        rows = torch.nn.utils.rnn.pad_sequence([sample["ids"].add_(1) for sample in samples], batch_first=True)
        return rows, targets, torch.rand(()).item() + random.random()


class Later(Base):
    """Only its second half has another shape."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2 + index // (SAMPLES // 2),), float(index))


class One(Base):
    def __getitem__(self, index: int) -> int:
        return index


def images(augmentation: AugmentationConfig | None) -> TensorData:
    pixels = torch.randint(0, 256, (SAMPLES, 1, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return TensorData(pixels, torch.arange(SAMPLES), pixels=Pixels([0.5], [0.2]), augmentation=augmentation)


DATA = {
    "points": lambda: Points(SAMPLES),
    "nested": Nested,
    "images": lambda: images(AugmentationConfig(random_crop_padding=2, horizontal_flip=True)),
    "one": One,
    "words": Words,
    "ragged": Ragged,
    "later": Later,
}
FOR_MEMORY_ONLY = ("words", "ragged", "later")


def batches_of(fetcher: Fetcher, epoch: int, num_workers: int) -> list[Any]:
    """Those of an epoch, in halves that are shuffled each."""
    half = SAMPLES // 2
    order = DataOrder(half, global_batch_size=16, micro_batch_size=10, seed=SEED)
    ids = [micro_batch.ids + start for start in (0, half) for micro_batch in order.micro_batches(epoch, 0)]
    loader = BatchLoader(fetcher, CPU, num_workers)
    try:
        return [batch for _, batch in loader.load(epoch, [MicroBatch(part, 16) for part in ids])]
    finally:
        loader.close()


def assert_same(mine: Any, other: Any) -> None:
    """Of equal types throughout, and tensors of equal bits and layout."""
    assert type(mine) is type(other)
    if isinstance(mine, torch.Tensor):
        assert (mine.dtype, mine.stride()) == (other.dtype, other.stride())
        assert mine.equal(other)
    elif isinstance(mine, dict):
        assert list(mine) == list(other)
        assert_same(list(mine.values()), list(other.values()))
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(other)
        for pair in zip(mine, other, strict=True):
            assert_same(*pair)
    else:
        assert mine == other


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", DATA)
def test_batches_are_the_same_to_the_bit(kind: str, num_workers: int) -> None:
    plain = SeededFetcher(DATA[kind](), SEED)
    expected = [batches_of(plain, epoch, 0) for epoch in (0, 2)]
    memory = cached(plain, "memory", CPU, num_workers)
    assert (memory is plain) == (kind == "images")
    assert_same([batches_of(memory, epoch, num_workers) for epoch in (0, 2)], expected)
    if kind not in FOR_MEMORY_ONLY:
        on_device = cached(plain, "device", CPU, num_workers)
        assert isinstance(on_device, SlicesOnDevice if kind == "images" else StackedSamples)
        assert_same([batches_of(on_device, epoch, num_workers) for epoch in (0, 2)], expected)


@pytest.mark.parametrize("kind", DATA)
def test_a_loader_process_changes_no_type_in_a_batch(kind: str) -> None:
    plain = SeededFetcher(DATA[kind](), SEED)
    assert_same(batches_of(plain, 1, 1), batches_of(plain, 1, 0))


@pytest.mark.parametrize("kind", FOR_MEMORY_ONLY)
def test_what_does_not_stack_is_kept_as_it_is(kind: str) -> None:
    plain = SeededFetcher(DATA[kind](), SEED)
    assert isinstance(cached(plain, "memory", CPU), KeptSamples)
    reason = {"words": "hold a str", "ragged": "collate_fn", "later": r"sample 75 .*\[3\].*\[2\]"}[kind]
    with pytest.raises(UnusableCode, match=f"data.cache: device: the validation set: .*{reason}.*data.cache: memory"):
        cached(plain, "device", CPU, role="validation")


def test_a_kept_sample_keeps_no_more_than_itself() -> None:
    kept = cached(SeededFetcher(Ragged(), SEED), "memory", CPU)
    assert isinstance(kept, KeptSamples)
    assert kept.samples[9]["ids"].untyped_storage().nbytes() == 8 * 4


class Counting(Points):
    """Counts how often each sample is loaded, in whatever process."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.loads = mp.get_context("fork").Array("i", samples)

    def __getitem__(self, index: int) -> Any:
        with self.loads.get_lock():
            self.loads[index] += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("cache", "loads"), [("none", 3), ("memory", 1), ("device", 1)])
def test_each_sample_is_loaded_once(cache: str, loads: int, num_workers: int) -> None:
    train, validation = Counting(96), Counting(30)
    config = toy_config(
        data__path=lambda: (train, validation), data__cache=cache, data__num_workers=num_workers, trainer__epochs=3
    )
    fit(config)
    for dataset in (train, validation):
        looked_at = spaced(len(dataset))  # for the fingerprint, once
        assert list(dataset.loads) == [loads + (index in looked_at) for index in range(len(dataset))]


class Drawing(Base):
    """One sample draws, from one generator."""

    def __init__(self, generator: str) -> None:
        super().__init__()
        self.draw = {"torch": torch.randperm, "numpy": np.random.permutation, "random": random.getrandbits}[generator]

    def __getitem__(self, index: int) -> int:
        if index == 77:
            self.draw(3)  # type: ignore[operator]
        return index


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("generator", ["torch", "numpy", "random"])
@pytest.mark.parametrize("collates", [False, True])
def test_a_random_sample_is_refused(generator: str, num_workers: int, collates: bool) -> None:
    dataset: Any = Drawing(generator)
    if collates:
        dataset.collate_fn = list
    with pytest.raises(UnusableCode, match=rf"training set: sample 77 .* of {generator},.*write data.cache: none$"):
        cached(SeededFetcher(dataset, SEED), "memory", CPU, num_workers)
    assert_no_process_is_left()


class DrawingOnce(Base):
    """The first load of one sample draws, such as to choose a file."""

    drew = False

    def __getitem__(self, index: int) -> int:
        if index == 77 and not self.drew:
            self.drew = True
            random.random()
        return index


def test_a_sample_that_draws_once_is_refused_too() -> None:
    with pytest.raises(UnusableCode, match=r"one of the samples (\d+) to (\d+) draws .* of random,") as caught:
        cached(SeededFetcher(DrawingOnce(), SEED), "memory", CPU)
    first, last = map(int, re.findall(r"samples (\d+) to (\d+)", str(caught.value))[0])
    assert first <= 77 <= last


def assert_no_process_is_left() -> None:
    deadline = time.monotonic() + 5
    while mp.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mp.active_children() == []


def test_loader_processes_end_when_all_samples_are_there() -> None:
    cached(SeededFetcher(Points(SAMPLES), SEED), "memory", CPU, num_workers=1)
    assert_no_process_is_left()


class Slices(Base):
    """Gives whole batches."""

    def batch(self, ids: torch.Tensor, seed: int, epoch: int) -> torch.Tensor:
        return ids * 2


class MovableSlices(Slices):
    def to(self, device: torch.device) -> "MovableSlices":
        moved = MovableSlices(self.samples)
        moved.device = device  # type: ignore[attr-defined]
        return moved


class Elsewhere(TensorData):
    """Has more than its tensors."""

    def batch(self, ids: torch.Tensor, seed: int, epoch: int) -> tuple[torch.Tensor, ...]:
        return (*super().batch(ids, seed, epoch), ids)


@pytest.mark.parametrize("dataset", [Slices(), Elsewhere(torch.arange(4))])
def test_slices_that_cannot_be_moved_are_refused(dataset: Any) -> None:
    with pytest.raises(UnusableCode, match=rf"{type(dataset).__name__} .*`to\(device\)`.* or write data.cache: none"):
        cached(SeededFetcher(dataset, SEED), "device", CPU)


def test_slices_move_themselves() -> None:
    fetcher = cached(SeededFetcher(MovableSlices(), SEED), "device", CPU)
    assert isinstance(fetcher, SlicesOnDevice)
    assert fetcher.dataset.device == CPU  # type: ignore[attr-defined]
    assert fetcher.fetch(0, torch.tensor([2, 4])).tolist() == [4, 8]


def test_the_users_tensors_stay_where_they_are() -> None:
    dataset = images(None)
    moved = cached(SeededFetcher(dataset, SEED), "device", torch.device("meta"))
    assert isinstance(moved, SlicesOnDevice)
    assert moved.dataset.tensors[0].device.type == "meta"  # type: ignore[attr-defined]
    assert dataset.tensors[0].device.type == "cpu"


def test_an_empty_set_needs_no_cache() -> None:
    plain = SeededFetcher(Points(0), SEED)
    assert cached(plain, "memory", CPU) is plain


def test_a_lack_of_memory_is_told_before_the_system_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    with pytest.raises(EnvironmentFault, match=r"training set does not fit: .* GiB more .*write data.cache: none"):
        cached(SeededFetcher(Points(SAMPLES), SEED), "memory", CPU)


def test_a_lack_of_memory_on_a_gpu_is_told_without_its_details() -> None:
    class Large(Slices):
        def to(self, device: torch.device) -> "Large":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has a total capacity ...")

    with pytest.raises(EnvironmentFault, match=r"fit: CUDA out of memory\. Tried to allocate 9 GiB; write data"):
        cached(SeededFetcher(Large(), SEED), "device", CPU)


def trained(folder: Path, stop_at_step: int | None = None, **overrides: Any) -> str:
    config = toy_config(data__path=points, checkpoint__every_n_steps=1, **overrides)
    trainer = build_trainer(config, Ranks.current(), MemoryReporter(stop_at_step=stop_at_step), folder)
    return trainer.fit().weights_sha256


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("cache", ["memory", "device"])
def test_training_is_the_same_with_a_resume_in_between(cache: str, num_workers: int, tmp_path: Path) -> None:
    expected = trained(tmp_path / "plain")
    trained(tmp_path / "parts", 8)
    assert trained(tmp_path / "parts", data__cache=cache, data__num_workers=num_workers) == expected


def test_the_next_item_is_started_before_one_is_handed_out() -> None:
    log: list[str] = []

    def started() -> Iterator[int]:
        for number in range(3):
            log.append(f"start {number}")
            yield number

    def finish(number: int) -> str:
        log.append(f"finish {number}")
        return str(number)

    for item in one_ahead(started(), finish):
        log.append(f"compute {item}")
    assert log == [
        *("start 0", "start 1", "finish 0", "compute 0"),
        *("start 2", "finish 1", "compute 1"),
        *("finish 2", "compute 2"),
    ]
    assert list(one_ahead(iter(()), finish)) == []


def test_an_error_of_the_next_item_comes_after_the_one_before() -> None:
    def started() -> Iterator[int]:
        yield 0
        yield 1
        raise ValueError("the third")

    items = one_ahead(started(), lambda number: number)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="the third"):
        next(items)
    assert next(items, None) is None


def test_every_tensor_that_is_moved_is_known_to_its_stream() -> None:
    one, two, three = torch.zeros(3).unbind()
    batch = {"pair": Pair(one, [two, 1]), "text": "tokens", "rest": (three, None)}
    assert [tensor.data_ptr() for tensor in _tensors(batch)] == [each.data_ptr() for each in (one, two, three)]


class FakeStream:
    """Stands for the stream of copies."""

    def __init__(self) -> None:
        self.open = 0

    def start(self, batch: Any) -> Any:
        self.open += 1
        return batch

    def finish(self, started: tuple[MicroBatch, Any]) -> tuple[MicroBatch, Any]:
        self.open -= 1
        return started


@pytest.mark.parametrize("taken", [1, 5, 10])
def test_a_loader_with_a_copy_stream_is_one_ahead(taken: int) -> None:
    loader, stream = BatchLoader(SeededFetcher(Points(40), SEED), CPU, num_workers=1), FakeStream()
    loader._copy_stream, loader.start = stream, stream.start  # type: ignore[assignment]
    order = DataOrder(40, global_batch_size=4, micro_batch_size=4, seed=SEED)
    batches = loader.load(1, order.micro_batches(1, 0))
    for number, (micro_batch, (_, _, ids)) in enumerate(islice(batches, taken), 1):
        assert ids.equal(micro_batch.ids)
        assert stream.open == (number < 10)
    assert loader.wait_seconds > 0
    assert taken < 10 or next(batches, None) is None
    loader.close()
    del batches
    assert_no_process_is_left()


def test_only_what_has_to_be_collated_keeps_its_loader_processes() -> None:
    kinds = {("points", "memory"): False, ("points", "device"): False, ("images", "device"): False}
    for (kind, cache), expected in {**kinds, ("words", "memory"): True}.items():
        loader = BatchLoader(cached(SeededFetcher(DATA[kind](), SEED), cache, CPU), CPU, num_workers=1)
        assert (loader._loader is not None) == expected


def test_without_page_locked_memory_there_is_no_copy_stream() -> None:
    for loader in (BatchLoader(SeededFetcher(Points(4), SEED), CPU, num_workers) for num_workers in (0, 1)):
        assert loader._copy_stream is None
        assert loader.start is loader.transfer
