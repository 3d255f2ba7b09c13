"""Copies beside the computation, and data that live on the GPU."""

from typing import Any

import pytest
import torch

from paceline.data._tensors import Pixels, TensorData
from paceline.data.augmentation import AugmentationConfig
from paceline.engine.caching import cached
from paceline.engine.dist_context import DistContext
from paceline.engine.loading import BatchLoader, SeededFetcher
from paceline.engine.order import DataOrder
from support.toys import fit, toy_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SAMPLES, WIDTH = 64, 1 << 16
SLEEP_CYCLES = 20_000_000


class Rows:
    """Samples that take a while to copy, each full of its own number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": torch.full((WIDTH,), float(index)), "index": index}


def order() -> DataOrder:
    return DataOrder(SAMPLES, global_batch_size=8, micro_batch_size=8, seed=1)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cache", ["none", "memory", "device"])
def test_slow_computation_sees_whole_batches(cache: str, num_workers: int) -> None:
    """The host runs far ahead, so that a missing wait, or memory that is given away too early, shows in the sums."""
    device = torch.device("cuda")
    fetcher = cached(SeededFetcher(Rows(), 0), cache, device, num_workers)
    loader = BatchLoader(fetcher, device, num_workers)
    assert (loader._copy_stream is None) == (cache == "device")
    expected, sums = [], []
    for epoch in range(3):
        for micro_batch, batch in loader.load(epoch, order().micro_batches(epoch, 0)):
            torch.cuda._sleep(SLEEP_CYCLES)
            sums.append((batch["row"].double().sum(dim=1) - batch["index"] * WIDTH).abs().sum())
            expected.append(micro_batch.ids)
            sums.append((batch["index"] - micro_batch.ids.to(device)).abs().sum().double())
            del batch
    loader.close()
    assert len(expected) == 3 * SAMPLES // 8
    assert torch.stack(sums).tolist() == [0.0] * len(sums)


def test_closing_in_the_middle_keeps_no_memory() -> None:
    device = torch.device("cuda")
    loader = BatchLoader(SeededFetcher(Rows(), 0), device, 1)
    before = torch.cuda.memory_allocated(device)
    batches = loader.load(0, order().micro_batches(0, 0))
    next(batches)
    loader.close()
    del batches
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated(device) == before


def test_a_batch_from_the_device_waits_for_nothing() -> None:
    device = torch.device("cuda")
    augmentation = AugmentationConfig(random_crop_padding=2, horizontal_flip=True)
    pixels = torch.randint(0, 256, (SAMPLES, 3, 8, 8), dtype=torch.uint8)
    dataset = TensorData(pixels, torch.arange(SAMPLES), pixels=Pixels([0.5] * 3, [0.2] * 3), augmentation=augmentation)
    plain = SeededFetcher(dataset, 0)
    fetcher = cached(plain, "device", device)
    ids = torch.tensor([3, 9, 1])
    fetcher.fetch(1, ids)
    torch.cuda.set_sync_debug_mode("error")
    try:
        inputs, targets = fetcher.fetch(1, ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected_inputs, expected_targets = SeededFetcher(dataset, 0).fetch(1, ids)
    torch.testing.assert_close(inputs.cpu(), expected_inputs.cpu(), rtol=0, atol=1e-6)
    assert targets.cpu().equal(expected_targets)


@pytest.mark.parametrize("cache", ["memory", "device"])
def test_training_is_the_same(cache: str) -> None:
    ranks = DistContext.current("cuda")
    expected = fit(toy_config(), ranks)[1].weights_sha256
    assert fit(toy_config(data__cache=cache), ranks)[1].weights_sha256 == expected
    assert fit(toy_config(data__pin_memory=False), ranks)[1].weights_sha256 == expected
