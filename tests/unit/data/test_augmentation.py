"""Random crop and flip: right against a slow reference, and a function of (seed, epoch, sample id) alone."""

import pytest
import torch
from torch.nn import functional as F

from paceline.data._augment import augment
from paceline.data._random import uniforms
from paceline.data.augmentation import AugmentationConfig

CROP_AND_FLIP = AugmentationConfig(random_crop_padding=2, horizontal_flip=True)

IDS = torch.tensor([3, 17, 4, 999, 0, 1, 2, 5])


def images(count: int = len(IDS), dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    pixels = torch.randint(1, 256, (count, 3, 6, 9), generator=torch.Generator().manual_seed(0))
    return pixels.to(dtype)


def slowly(image: torch.Tensor, config: AugmentationConfig, seed: int, epoch: int, sample: int) -> torch.Tensor:
    pad = config.random_crop_padding
    top, left, mirror = uniforms(seed, epoch, torch.tensor([sample]), 3)[:, 0].tolist()
    y, x = int(top * (2 * pad + 1)), int(left * (2 * pad + 1))
    cut = F.pad(image, (pad,) * 4)[:, y : y + image.shape[1], x : x + image.shape[2]]
    return cut.flip(2) if config.horizontal_flip and mirror < 0.5 else cut


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("pad", "flip"), [(0, True), (2, False), (2, True), (7, True)])
def test_equals_one_sample_at_a_time(pad: int, flip: bool, dtype: torch.dtype) -> None:
    config = AugmentationConfig(random_crop_padding=pad, horizontal_flip=flip)
    batch = images(dtype=dtype)
    expected = [slowly(image, config, 5, 2, int(sample)) for image, sample in zip(batch, IDS, strict=True)]
    assert augment(batch, config, 5, 2, IDS).equal(torch.stack(expected))
    assert augment(batch, AugmentationConfig(), 5, 2, IDS) is batch


def test_neither_reads_nor_moves_the_global_generator() -> None:
    torch.manual_seed(1)
    first, state = augment(images(), CROP_AND_FLIP, 0, 0, IDS), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(2)
    assert augment(images(), CROP_AND_FLIP, 0, 0, IDS).equal(first)


def test_every_shift_is_equally_likely_and_half_are_mirrored() -> None:
    count, marked = 20_000, torch.zeros(1, 1, 5, 5)
    marked[0, 0, 2, 1] = 1.0  # off the vertical axis: columns 0 to 2 unmirrored, 2 to 4 mirrored
    config = AugmentationConfig(random_crop_padding=1, horizontal_flip=True)
    seen = augment(marked.expand(count, -1, -1, -1), config, 0, 0, torch.arange(count)).mean(0)[0]
    assert seen[1:4].sum(1).sub(1 / 3).abs().max() < 0.015
    assert seen.sum(0).sub(torch.tensor([1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6])).abs().max() < 0.015
