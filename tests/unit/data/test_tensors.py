"""Data sets of tensors, sliced by the batch."""

import pytest
import torch
from torch.nn import functional as F

from paceline.data._tensors import Pixels, TensorData
from paceline.data.augmentation import AugmentationConfig

MEAN, STD = [0.5, 0.25], [0.2, 0.4]


def images(count: int = 10) -> torch.Tensor:
    return torch.randint(0, 256, (count, 2, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.double() / 255 - torch.tensor(MEAN).view(-1, 1, 1)) / torch.tensor(STD).view(-1, 1, 1)


def test_a_batch_holds_the_asked_samples_in_the_asked_order() -> None:
    data = TensorData(images(), torch.arange(10), torch.arange(10) * 2.0)
    ids = torch.tensor([7, 0, 7])
    first, second, third = data.batch(ids, seed=0, epoch=0)
    assert first.equal(images()[ids])
    assert second.tolist() == [7, 0, 7]
    assert third.tolist() == [14.0, 0.0, 14.0]
    assert len(data) == 10


def test_items_and_batches_agree() -> None:
    data = TensorData(images(), torch.arange(10), pixels=Pixels(MEAN, STD))
    inputs, targets = data.batch(torch.arange(10), seed=0, epoch=0)
    for index in range(10):
        image, target = data[index]
        assert image.equal(inputs[index])
        assert target == targets[index]


def test_pixels_are_scaled_and_normalised() -> None:
    inputs = Pixels(MEAN, STD)(images())
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.double(), normalised(images()), atol=1e-6, rtol=1e-5)


def test_pixels_are_resized_sample_by_sample_alike() -> None:
    pixels = Pixels(MEAN, STD, size=7)
    whole = pixels(images())
    expected = F.interpolate(normalised(images()), (7, 7), mode="bilinear", antialias=True)
    torch.testing.assert_close(whole.double(), expected, atol=1e-5, rtol=1e-5)
    assert pixels(images()[3:4])[0].equal(whole[3])


def test_only_batches_are_augmented_and_never_the_tensors_held() -> None:
    kept = images()
    data = TensorData(kept, torch.arange(10), augmentation=AugmentationConfig(random_crop_padding=3))
    first, _ = data.batch(torch.arange(10), seed=0, epoch=0)
    assert not first.equal(images())
    assert kept.equal(images())
    assert data[4][0].equal(images()[4])


def test_tensors_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[10, 9\]"):
        TensorData(images(), torch.arange(9))
