"""Cached samples: batches stay the same to the bit, each sample is loaded once, and no random one is kept."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from paceline.data._tensors import TensorData
from paceline.engine.caching import KeptSamples, SlicesOnDevice, StackedSamples, cached
from paceline.engine.dataset_identity import spaced
from paceline.engine.failure import describe
from paceline.engine.loading import BatchLoader, SeededFetcher, one_ahead
from paceline.errors import EnvironmentFault, UnusableCode
from support.engine.cached_sets import (
    CPU,
    DATA,
    FOR_MEMORY_ONLY,
    SAMPLES,
    SEED,
    Base,
    Drawing,
    Ragged,
    assert_same,
    batches_of,
    images,
)
from support.refusals import refused
from support.toys import Points, fit, toy_config


@pytest.mark.parametrize("kind", DATA)
def test_batches_are_the_same_to_the_bit(kind: str) -> None:
    plain = SeededFetcher(DATA[kind](), SEED)
    expected = [batches_of(plain, epoch, 0) for epoch in (0, 2)]
    memory = cached(plain, "memory", CPU)
    assert (memory is plain) == (kind == "images")
    assert_same([batches_of(memory, epoch, 0) for epoch in (0, 2)], expected)
    if kind not in FOR_MEMORY_ONLY:
        on_device = cached(plain, "device", CPU)
        assert isinstance(on_device, SlicesOnDevice if kind == "images" else StackedSamples)
        assert_same([batches_of(on_device, epoch, 0) for epoch in (0, 2)], expected)


@pytest.mark.parametrize("kind", FOR_MEMORY_ONLY)
def test_samples_that_do_not_stack_are_kept_as_they_are(kind: str, golden: Any) -> None:
    plain = SeededFetcher(DATA[kind](), SEED)
    assert isinstance(cached(plain, "memory", CPU), KeptSamples)
    refusal = refused(UnusableCode, cached, plain, "device", CPU, role="validation")
    assert (refusal.code, refusal.fields) == ("not-stackable", {"cache": "device", "role": "validation"})
    golden(str(refusal))


def test_a_kept_sample_keeps_no_more_than_itself() -> None:
    kept = cached(SeededFetcher(Ragged(), SEED), "memory", CPU)
    assert isinstance(kept, KeptSamples)
    assert kept.samples[9]["ids"].untyped_storage().nbytes() == 8 * 4


class Counting(Points):
    """Counts how often each sample is loaded."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.loads: Counter[int] = Counter()

    def __getitem__(self, index: int) -> Any:
        self.loads[index] += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(("cache", "loads"), [("none", 3), ("memory", 1), ("device", 1)])
def test_each_sample_is_loaded_once(cache: str, loads: int) -> None:
    train, validation = Counting(96), Counting(30)
    fit(toy_config(data__path=lambda: (train, validation), data__cache=cache, trainer__epochs=3))
    for dataset in (train, validation):
        looked_at = spaced(len(dataset))  # for the fingerprint, once
        assert dataset.loads == {index: loads + (index in looked_at) for index in range(len(dataset))}


@pytest.mark.parametrize("generator", ["torch", "numpy", "random"])
@pytest.mark.parametrize("collates", [False, True])
def test_a_random_sample_is_refused(generator: str, collates: bool, golden: Any) -> None:
    dataset: Any = Drawing(generator)
    if collates:
        dataset.collate_fn = list
    refusal = refused(UnusableCode, cached, SeededFetcher(dataset, SEED), "memory", CPU)
    assert (refusal.code, refusal.fields["role"]) == ("random-sample", "training")
    if (collates, generator) == (False, "torch"):
        golden(str(refusal))


def test_a_sample_that_draws_once_is_refused_too() -> None:
    dataset: Any = Drawing("random", once=True)
    refusal = refused(UnusableCode, cached, SeededFetcher(dataset, SEED), "memory", CPU)
    assert refusal.code == "random-sample"
    first, last = map(int, re.findall(r"(\d+) to (\d+)", str(refusal))[0])
    assert first <= 77 <= last


class Slices(Base):
    """Gives whole batches."""

    def batch(self, ids: torch.Tensor, seed: int, epoch: int) -> torch.Tensor:
        return ids * 2


class MovableSlices(Slices):
    device = torch.device("meta")

    def to(self, device: torch.device) -> "MovableSlices":
        moved = MovableSlices(self.samples)
        moved.device = device
        return moved


class Elsewhere(TensorData):
    """Has more than its tensors."""

    def batch(self, ids: torch.Tensor, seed: int, epoch: int) -> tuple[torch.Tensor, ...]:
        return (*super().batch(ids, seed, epoch), ids)


@pytest.mark.parametrize("dataset", [Slices(), Elsewhere(torch.arange(4))])
def test_slices_that_cannot_be_moved_are_refused(dataset: Any, golden: Any) -> None:
    refusal = refused(UnusableCode, cached, SeededFetcher(dataset, SEED), "device", CPU)
    assert refusal.code == "not-movable"
    golden(str(refusal))


def test_slices_move_themselves_and_leave_the_users_tensors() -> None:
    fetcher = cached(SeededFetcher(MovableSlices(), SEED), "device", CPU)
    assert isinstance(fetcher, SlicesOnDevice)
    assert fetcher.dataset.device == CPU  # type: ignore[attr-defined]
    assert fetcher.fetch(0, torch.tensor([2, 4])).tolist() == [4, 8]
    dataset = images(None)
    moved = cached(SeededFetcher(dataset, SEED), "device", torch.device("meta"))
    assert isinstance(moved, SlicesOnDevice)
    assert moved.dataset.tensors[0].device.type == "meta"  # type: ignore[attr-defined]
    assert dataset.tensors[0].device.type == "cpu"


def test_an_empty_set_needs_no_cache() -> None:
    plain = SeededFetcher(Points(0), SEED)
    assert cached(plain, "memory", CPU) is plain


class TooLarge(Slices):
    def to(self, device: torch.device) -> "TooLarge":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has a total capacity ...")


@pytest.mark.parametrize(("dataset", "cache"), [(Points(SAMPLES), "memory"), (TooLarge(), "device")])
def test_a_lack_of_memory_is_an_error_before_the_system_kills(
    dataset: Any, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    refusal = refused(EnvironmentFault, cached, SeededFetcher(dataset, SEED), cache, CPU)
    assert (refusal.code, refusal.fields) == ("cache-too-large", {"cache": cache, "role": "training"})
    assert describe(refusal, 0).kind == "oom"
    assert "total capacity" not in str(refusal)


# One batch ahead


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
        raise LookupError

    items = one_ahead(started(), lambda number: number)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(LookupError):
        next(items)
    assert next(items, None) is None


@pytest.mark.parametrize(
    ("kind", "cache", "keeps"),
    [("points", "memory", False), ("points", "device", False), ("images", "device", False), ("words", "memory", True)],
)
def test_only_samples_that_have_to_be_collated_keep_loader_processes(kind: str, cache: str, keeps: bool) -> None:
    loader = BatchLoader(cached(SeededFetcher(DATA[kind](), SEED), cache, CPU), CPU, num_workers=1)
    assert (loader._loader is not None) == keeps
