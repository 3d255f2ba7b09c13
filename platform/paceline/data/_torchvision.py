"""Opens torchvision's data sets, downloading what is not there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.datasets
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset, Subset

from paceline.data._random import fixed_order
from paceline.data._torchvision_sets import TorchvisionSource
from paceline.errors import EnvironmentFault

# What torchvision raises when files are missing or broken, a download fails or a reader is not installed.
_FAILURES = (RuntimeError, OSError, ValueError, ImportError, EOFError)


def open_parts(
    name: str, source: TorchvisionSource, root: str, download: bool, transforms: tuple[Any, Any] = (None, None)
) -> tuple[Dataset[Any], Dataset[Any]]:
    """The training and validation parts of a set.

    Args:
        name: the class's name in `torchvision.datasets`.
        source: how it spells its parts.
        root: folder that holds the files.
        download: whether to download what is not there.
        transforms: what the images of each part go through; None leaves them as torchvision gives them.

    Raises:
        EnvironmentFault: the files are not there and cannot be had.
    """
    validation = source.train if source.validation is None else source.validation
    parts = [
        _open(name, root, download and source.downloads, {**chosen, "transform": transform})
        for chosen, transform in zip((source.train, validation), transforms, strict=True)
    ]
    if source.validation is not None:
        return parts[0], parts[1]
    order = fixed_order(len(parts[0])).tolist()
    held_out = len(order) // 5
    return Subset(parts[0], order[held_out:]), Subset(parts[1], order[:held_out])


def tensors_of(dataset: Any) -> tuple[Tensor, Tensor]:
    """All of a set of small images at once.

    Returns:
        Images, uint8 of shape [n, channels, height, width], and their classes, int64 of shape [n].
    """
    images = torch.as_tensor(dataset.data)
    if images.dim() == 3:
        images = images.unsqueeze(1)
    elif images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    targets = torch.as_tensor(np.asarray(dataset.targets if hasattr(dataset, "targets") else dataset.labels))
    # QMNIST's targets are rows of which the class is the first number.
    return images.contiguous(), (targets[:, 0] if targets.dim() == 2 else targets).long()


def _open(name: str, root: str, download: bool, arguments: Mapping[str, Any]) -> Any:
    dataset = getattr(torchvision.datasets, name)
    try:
        return dataset(root, **arguments)
    except _FAILURES as error:
        if not download:
            raise _fault(name, root, error) from error
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        # The workers of one machine all come here: the first downloads, and the others find what it left.
        with FileLock(Path(root) / ".download.lock"):
            return _open_or_download(dataset, root, arguments)
    except _FAILURES as error:
        raise _fault(name, root, error) from error


def _open_or_download(dataset: Any, root: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return dataset(root, **arguments)
    except _FAILURES:
        return dataset(root, **arguments, download=True)


def _fault(name: str, root: str, error: Exception) -> EnvironmentFault:
    return EnvironmentFault(
        f"data {name}: not to be had from {Path(root).absolute()}: {error}. Its files may be put there by hand, as "
        f"the documentation of torchvision.datasets.{name} describes",
        "data-missing",
        folder=str(Path(root).absolute()),
    )
