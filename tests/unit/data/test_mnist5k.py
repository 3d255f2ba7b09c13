"""The installed MNIST images: what they are, how they are split, and what happens when they are not there."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.data import _mnist5k
from paceline.data.mnist5k import Mnist5kConfig
from paceline.errors import EnvironmentFault
from support.refusals import refused

STARTS = [[2, 9, 5, 3, 7, 0, 7, 8, 5, 3, 8, 2], [8, 0, 8, 9, 1, 9, 5, 7, 5, 9, 3, 2]]
"""Classes of the first images of each part, as first released: results are compared across versions."""


def test_both_parts() -> None:
    config = Mnist5kConfig(name="mnist5k")
    parts: Any = config.build()
    assert config.sizes() == tuple(map(len, parts))
    for part in parts:
        image, target = part[0]
        assert (image.shape, image.dtype) == ((1, 28, 28), torch.float32)
        assert (target.shape, target.dtype) == ((), torch.int64)
    targets = [part.tensors[1] for part in parts]
    assert [each.bincount().tolist() for each in targets] == [[400] * 10, [100] * 10]
    assert [each[:12].tolist() for each in targets] == STARTS
    ids = torch.cat(_mnist5k.split(_mnist5k.load()[1]))
    assert ids.sort().values.equal(torch.arange(5000))
    inputs = parts[0].batch(torch.arange(4000), seed=0, epoch=0)[0]
    assert inputs.mean().abs() < 0.02
    assert (inputs.std() - 1).abs() < 0.02
    assert inputs.min() == pytest.approx(-0.1307 / 0.3081, abs=1e-5)


def test_only_training_images_are_augmented() -> None:
    parts: Any = Mnist5kConfig.model_validate({"name": "mnist5k", "augmentation": {"random_crop_padding": 2}}).build()
    for part, moved in zip(parts, (True, False), strict=True):
        inputs = part.batch(torch.arange(50), seed=0, epoch=0)[0]
        assert inputs.equal(torch.stack([part[index][0] for index in range(50)])) != moved


def test_another_file_or_no_package_is_an_environment_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Any
) -> None:
    other = tmp_path / "mnist_5k.csv.gz"
    with monkeypatch.context() as patch:
        patch.setattr(_mnist5k, "_file", lambda: other)
        for content, code in ((gzip.compress(b"0,1,2\n"), "data-changed"), (b"not gzip", "data-unreadable")):
            other.write_bytes(content)
            refusal = refused(EnvironmentFault, _mnist5k.load)
            assert refusal.code == code
            golden(str(refusal), code)
    monkeypatch.setattr(_mnist5k, "find_spec", lambda name: None)
    assert refused(EnvironmentFault, _mnist5k.load).code == "package-missing"
