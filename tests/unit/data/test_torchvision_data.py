"""torchvision's data sets: the shipped tables against torchvision itself, and real files of two of them."""

import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image

from paceline.config.data import Sizes
from paceline.data import _torchvision
from paceline.data._torchvision_sets import PHOTOS, SMALL, TorchvisionSource
from paceline.data.torchvision import PhotoTorchvisionConfig, SmallTorchvisionConfig
from paceline.errors import EnvironmentFault
from support.refusals import refused

SETS = {**SMALL, **PHOTOS}

# Not classification of single images with the same classes in both parts.
_LEFT_OUT = """
    LSUN LSUNClass ImageFolder DatasetFolder FakeData CocoCaptions CocoDetection MovingMNIST PhotoTour SEMEION Omniglot
    SBU Flickr8k Flickr30k VOCSegmentation VOCDetection Cityscapes CelebA WIDERFace SBDataset VisionDataset Kinetics
    HMDB51 UCF101 Kitti LFWPeople LFWPairs KittiFlow Sintel FlyingChairs FlyingThings3D HD1K Kitti2012Stereo
    Kitti2015Stereo CarlaStereo Middlebury2014Stereo CREStereo FallingThingsStereo SceneFlowStereo SintelStereo
    InStereo2k ETH3DStereo wrap_dataset_for_transforms_v2
"""


def test_every_set_of_torchvision_is_either_offered_or_left_out() -> None:
    for cls, table in ((SmallTorchvisionConfig, SMALL), (PhotoTorchvisionConfig, PHOTOS)):
        assert set(get_args(cls.model_fields["name"].annotation)) == set(table)
    assert set(torchvision.datasets.__all__) == {*SETS, *_LEFT_OUT.split()}


@pytest.mark.parametrize("name", sorted(SETS))
def test_torchvision_knows_the_arguments_and_the_parts(name: str, tmp_path: Path) -> None:
    """Wrong ones are refused before files are looked for: an argument by a TypeError, a part by a ValueError."""
    build = getattr(torchvision.datasets, name)
    source = SETS[name]
    options = {"transform": None, **({"download": False} if source.downloads else {})}
    for chosen in (source.train, source.validation or {}):
        with pytest.raises((RuntimeError, FileNotFoundError)):
            build(str(tmp_path), **chosen, **options)


def write_mnist(root: Path, counts: tuple[int, int]) -> dict[str, np.ndarray[Any, Any]]:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng, written = np.random.default_rng(0), {}
    for part, count in zip(("train", "t10k"), counts, strict=True):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
        written[part], written[f"{part}-labels"] = images, labels
    return written


def test_mnist_from_its_raw_files(tmp_path: Path) -> None:
    written = write_mnist(tmp_path, (12, 5))
    config = SmallTorchvisionConfig(name="MNIST", root=str(tmp_path), download=False)
    parts: Any = config.build()
    for part, key in zip(parts, ("train", "t10k"), strict=True):
        inputs, targets = part.batch(torch.arange(len(part)), seed=0, epoch=0)
        expected = (torch.from_numpy(written[key]).float() / 255 - 0.1307) / 0.3081
        torch.testing.assert_close(inputs, expected.unsqueeze(1), atol=1e-5, rtol=1e-5)
        assert targets.tolist() == written[f"{key}-labels"].tolist()
    resized: Any = config.model_copy(update={"image_size": 32}).build()[0]
    assert resized.batch(torch.arange(12), seed=0, epoch=0)[0].shape == (12, 1, 32, 32)
    assert (resized.tensors[0].shape, resized.tensors[0].dtype) == ((12, 1, 28, 28), torch.uint8)


def test_cifar10_from_its_pickled_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)

    def write(name: str, content: object) -> tuple[str, str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return name, hashlib.md5(data).hexdigest()

    batches = [write(f"data_batch_{index}", {"data": pixels, "labels": [3, index]}) for index in range(1, 6)]
    meta = write("batches.meta", {"label_names": [str(label) for label in range(10)]})
    cifar = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", batches)
    monkeypatch.setattr(cifar, "test_list", [write("test_batch", {"data": pixels, "labels": [7, 8]})])
    monkeypatch.setattr(cifar, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})

    parts: Any = SmallTorchvisionConfig(name="CIFAR10", root=str(tmp_path), download=False).build()
    train, validation = parts
    assert train.tensors[1].tolist() == [3, 1, 3, 2, 3, 3, 3, 4, 3, 5]
    assert validation.tensors[1].tolist() == [7, 8]
    assert validation.tensors[0].equal(torch.from_numpy(pixels).view(2, 3, 32, 32))


class Whole:
    """Stands for a set in one piece."""

    def __init__(self, root: str, transform: Any = None, download: bool = False) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 103

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.new("RGB", (20, 20))), index


def test_a_set_in_one_piece_keeps_a_fifth_for_validation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torchvision.datasets, "EuroSAT", Whole)
    parts: Any = PhotoTorchvisionConfig(name="EuroSAT", root=str(tmp_path), image_size=8).build()
    train, validation = parts
    assert (len(train), len(validation)) == (83, 20)
    assert sorted([*train.indices, *validation.indices]) == list(range(103))
    assert validation[0][0].shape == (3, 8, 8)
    assert PhotoTorchvisionConfig(name="EuroSAT").sizes() == Sizes(21_600, 5_400)


def test_missing_files_are_an_environment_fault_that_names_the_folder(tmp_path: Path) -> None:
    refusal = refused(EnvironmentFault, SmallTorchvisionConfig(name="MNIST", root=str(tmp_path), download=False).build)
    assert (refusal.code, refusal.fields) == ("data-missing", {"folder": str(tmp_path)})


class Downloading:
    """Stands for a set whose files are there once they were downloaded."""

    downloads: list[bool]

    def __init__(self, root: str, split: str, download: bool = False) -> None:
        file = Path(root) / split
        if download:
            self.downloads.append(True)
            file.touch()
        if not file.exists():
            raise RuntimeError("Dataset not found")


def test_only_missing_files_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets, "SVHN", Downloading)
    monkeypatch.setattr(Downloading, "downloads", [], raising=False)
    source = TorchvisionSource({"split": "train"}, {"split": "test"}, Sizes(1, 1))
    for _ in range(2):
        _torchvision._open("SVHN", str(tmp_path / "new"), True, source.train)
    assert Downloading.downloads == [True]


def test_a_failed_download_is_an_environment_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Any
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fail)
    refusal = refused(EnvironmentFault, SmallTorchvisionConfig(name="CIFAR10", root=str(tmp_path)).build)
    assert refusal.code == "data-missing"
    golden(str(refusal))
