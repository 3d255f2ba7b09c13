"""The installed MNIST images: what they are, how they are split, and what happens when they are not there."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.data import _mnist5k
from paceline.data._tensors import TensorData
from paceline.data.mnist5k import Mnist5kConfig
from paceline.errors import EnvironmentFault


@pytest.fixture(scope="module")
def parts() -> tuple[TensorData, TensorData]:
    train, validation = Mnist5kConfig(name="mnist5k").build()
    assert isinstance(train, TensorData)
    assert isinstance(validation, TensorData)
    return train, validation


def test_shapes_types_and_sizes(parts: tuple[TensorData, TensorData]) -> None:
    assert Mnist5kConfig(name="mnist5k").sizes() == tuple(len(part) for part in parts)
    for part in parts:
        image, target = part[0]
        assert (image.shape, image.dtype) == ((1, 28, 28), torch.float32)
        assert (target.shape, target.dtype) == ((), torch.int64)


def test_every_class_is_split_alike(parts: tuple[TensorData, TensorData]) -> None:
    assert [part.tensors[1].bincount().tolist() for part in parts] == [[400] * 10, [100] * 10]


def test_every_image_is_in_one_part(parts: tuple[TensorData, TensorData]) -> None:
    _, targets = _mnist5k.load()
    ids = torch.cat(_mnist5k.split(targets))
    assert ids.sort().values.equal(torch.arange(5000))


def test_images_are_normalised_digits(parts: tuple[TensorData, TensorData]) -> None:
    inputs = parts[0].batch(torch.arange(4000), seed=0, epoch=0)[0]
    assert inputs.mean().abs() < 0.02
    assert (inputs.std() - 1).abs() < 0.02
    assert inputs.min() == pytest.approx(-0.1307 / 0.3081, abs=1e-5)


# The classes of the first images of each part, as first released: results are compared across versions.
STARTS = [[2, 9, 5, 3, 7, 0, 7, 8, 5, 3, 8, 2], [8, 0, 8, 9, 1, 9, 5, 7, 5, 9, 3, 2]]


def test_the_split_never_changes(parts: tuple[TensorData, TensorData]) -> None:
    assert [part.tensors[1][:12].tolist() for part in parts] == STARTS


def test_only_training_images_are_augmented() -> None:
    config = Mnist5kConfig.model_validate({"name": "mnist5k", "augmentation": {"random_crop_padding": 2}})
    for part, moved in zip(config.build(), (True, False), strict=True):
        assert isinstance(part, TensorData)
        inputs = part.batch(torch.arange(50), seed=0, epoch=0)[0]
        assert inputs.equal(torch.stack([part[index][0] for index in range(50)])) != moved


def test_another_file_is_an_environment_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Any) -> None:
    other = tmp_path / "mnist_5k.csv.gz"
    monkeypatch.setattr(_mnist5k, "_file", lambda: other)
    for content, code in ((gzip.compress(b"0,1,2\n"), "data-changed"), (b"not gzip", "data-unreadable")):
        other.write_bytes(content)
        with pytest.raises(EnvironmentFault) as caught:
            _mnist5k.load()
        assert caught.value.code == code
        golden(str(caught.value), code)


def test_a_missing_package_is_an_environment_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mnist5k, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault) as caught:
        _mnist5k.load()
    assert caught.value.code == "package-missing"
