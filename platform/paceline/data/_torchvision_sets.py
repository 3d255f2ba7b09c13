"""Tables of torchvision's classification sets, so that a config can be checked without importing torchvision.

A test compares the tables with torchvision itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config.data import Sizes


@dataclass(frozen=True)
class TorchvisionSource:
    """One of torchvision's data sets: the arguments that select its two parts, and their numbers of samples."""

    train: Mapping[str, Any]
    """Keyword arguments that choose the training part."""
    validation: Mapping[str, Any] | None
    """Keyword arguments that choose the validation part; None when the set comes in one piece."""
    sizes: Sizes
    mean: tuple[float, ...] = ()
    """Mean of each channel, for pixels in [0, 1]; empty for photographs, which are normalised with ImageNet's."""
    std: tuple[float, ...] = ()
    downloads: bool = True
    """True if the class has a `download` argument."""


def _flagged(sizes: Sizes, mean: tuple[float, ...], std: tuple[float, ...], **fixed: Any) -> TorchvisionSource:
    return TorchvisionSource({"train": True, **fixed}, {"train": False, **fixed}, sizes, mean, std)


def _split(train: str, validation: str, sizes: Sizes, downloads: bool = True, **fixed: Any) -> TorchvisionSource:
    return TorchvisionSource({"split": train, **fixed}, {"split": validation, **fixed}, sizes, downloads=downloads)


def _whole(count: int) -> TorchvisionSource:
    held_out = count // 5
    return TorchvisionSource({}, None, Sizes(count - held_out, held_out))


SMALL: Mapping[str, TorchvisionSource] = {
    "MNIST": _flagged(Sizes(60_000, 10_000), (0.1307,), (0.3081,)),
    "FashionMNIST": _flagged(Sizes(60_000, 10_000), (0.2860,), (0.3530,)),
    "KMNIST": _flagged(Sizes(60_000, 10_000), (0.1918,), (0.3483,)),
    "QMNIST": _flagged(Sizes(60_000, 60_000), (0.1307,), (0.3081,)),
    "EMNIST": _flagged(Sizes(112_800, 18_800), (0.1751,), (0.3332,), split="balanced"),
    "USPS": _flagged(Sizes(7_291, 2_007), (0.2469,), (0.2989,)),
    "CIFAR10": _flagged(Sizes(50_000, 10_000), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR100": _flagged(Sizes(50_000, 10_000), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "SVHN": TorchvisionSource(
        {"split": "train"},
        {"split": "test"},
        Sizes(73_257, 26_032),
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
    ),
    "STL10": TorchvisionSource(
        {"split": "train"}, {"split": "test"}, Sizes(5_000, 8_000), (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)
    ),
}
"""Sets of small images, which are held in memory as bytes."""

PHOTOS: Mapping[str, TorchvisionSource] = {
    "CLEVRClassification": _split("train", "val", Sizes(70_000, 15_000)),
    "Caltech101": _whole(8_677),
    "Caltech256": _whole(30_607),
    "Country211": _split("train", "valid", Sizes(31_650, 10_550)),
    "DTD": _split("train", "val", Sizes(1_880, 1_880)),
    "EuroSAT": _whole(27_000),
    "FER2013": _split("train", "test", Sizes(28_709, 3_589), downloads=False),
    "FGVCAircraft": _split("train", "val", Sizes(3_334, 3_333)),
    "Flowers102": _split("train", "val", Sizes(1_020, 1_020)),
    "Food101": _split("train", "test", Sizes(75_750, 25_250)),
    "GTSRB": _split("train", "test", Sizes(26_640, 12_630)),
    "INaturalist": TorchvisionSource({"version": "2021_train"}, {"version": "2021_valid"}, Sizes(2_686_843, 100_000)),
    "ImageNet": _split("train", "val", Sizes(1_281_167, 50_000), downloads=False),
    "Imagenette": _split("train", "val", Sizes(9_469, 3_925)),
    "OxfordIIITPet": _split("trainval", "test", Sizes(3_680, 3_669)),
    "PCAM": _split("train", "val", Sizes(262_144, 32_768)),
    "Places365": _split("train-standard", "val", Sizes(1_803_460, 36_500), small=True),
    "RenderedSST2": _split("train", "val", Sizes(6_920, 872)),
    "SUN397": _whole(108_754),
    "StanfordCars": _split("train", "test", Sizes(8_144, 8_041), downloads=False),
}
"""Sets of larger images, which are read from disk one by one. A set in one piece keeps a fifth for validation."""
