"""Loader processes: they change no bit, load each sample once, and end."""

import multiprocessing as mp
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.build import build_trainer
from paceline.engine.caching import cached
from paceline.engine.dataset_identity import spaced
from paceline.engine.dist_context import DistContext
from paceline.engine.loading import BatchLoader, SeededFetcher
from paceline.engine.order import DataOrder, MicroBatch
from paceline.engine.reporter import MemoryReporter
from paceline.errors import UnusableCode
from support.engine.cached_sets import CPU, DATA, FOR_MEMORY_ONLY, SEED, Drawing, assert_same, batches_of
from support.refusals import refused
from support.toys import Points, fit, net_with_dropout_and_norm, points, toy_config


def assert_no_process_is_left() -> None:
    deadline = time.monotonic() + 60
    while mp.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mp.active_children() == []


@pytest.mark.parametrize("kind", DATA)
def test_loader_processes_change_no_batch(kind: str) -> None:
    """Neither its types nor its bits, with and without a cache that they have filled."""
    plain = SeededFetcher(DATA[kind](), SEED)
    expected = batches_of(plain, 2, 0)
    assert_same(batches_of(plain, 2, 1), expected)
    for cache in ("memory",) if kind in FOR_MEMORY_ONLY else ("memory", "device"):
        assert_same(batches_of(cached(plain, cache, CPU, 1), 2, 1), expected)
    assert_no_process_is_left()


class Counting(Points):
    """Counts how often each sample is loaded, in whatever process."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.loads = mp.get_context("fork").Array("i", samples)

    def __getitem__(self, index: int) -> Any:
        with self.loads.get_lock():
            self.loads[index] += 1
        return super().__getitem__(index)


def test_each_sample_is_loaded_once() -> None:
    train, validation = Counting(96), Counting(30)
    data = {"data__path": lambda: (train, validation), "data__cache": "memory", "data__num_workers": 2}
    fit(toy_config(**data, trainer__epochs=3))
    for dataset in (train, validation):
        looked_at = spaced(len(dataset))  # for the fingerprint, once
        assert list(dataset.loads) == [1 + (index in looked_at) for index in range(len(dataset))]


def test_a_random_sample_is_refused() -> None:
    refusal = refused(UnusableCode, cached, SeededFetcher(Drawing("numpy"), SEED), "memory", CPU, 1)
    assert refusal.code == "random-sample"
    assert_no_process_is_left()


@pytest.mark.parametrize("cache", ["none", "memory", "device"])
def test_training_is_the_same_with_a_resume_in_between(cache: str, tmp_path: Path) -> None:
    """Also where samples and model draw random numbers."""

    def trained(folder: str, stop_at_step: int | None = None, **overrides: Any) -> str:
        config = toy_config(
            model__path=net_with_dropout_and_norm,
            data__path=lambda: points(noisy=cache == "none"),
            checkpoint__every_n_steps=1,
            **overrides,
        )
        reporter = MemoryReporter(stop_at_step=stop_at_step)
        return build_trainer(config, DistContext.current(), reporter, tmp_path / folder).fit().weights_sha256

    expected = trained("plain")
    trained("parts", 8, data__num_workers=2, data__persistent_workers=False)
    assert trained("parts", data__cache=cache, data__num_workers=1) == expected


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
