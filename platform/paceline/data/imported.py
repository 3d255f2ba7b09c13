"""The user's own data sets, by import path."""

from typing import TYPE_CHECKING, Any

from paceline.config.imports import Called, Imported
from paceline.data.base import DataConfig
from paceline.errors import UnusableCode

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class CalledDataConfig(Called, DataConfig):
    """A callable that takes `args` and returns `(train, validation)`, two map-style data sets."""

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """Call the user's builder.

        Raises:
            UnusableCode: what it returned is no pair of map-style data sets.
        """
        found = self.call()
        if not isinstance(found, tuple | list) or len(found) != 2:
            message = f"{self.chosen('data')} must return (train, validation), not {_kind(found)}"
            raise UnusableCode(message, "not-two-sets")
        for role, dataset in zip(("training", "validation"), found, strict=True):
            _check_map_style(f"{self.chosen('data')}: the {role} set", dataset)
        return found[0], found[1]


class ImportedDataConfig(Imported, CalledDataConfig):
    """`path` leads to a callable that takes `args` and returns `(train, validation)`, two map-style data sets."""


def _kind(found: Any) -> str:
    """What a builder returned, such as `TensorDataset` or `tuple of 3`."""
    return f"{type(found).__name__} of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__


def _check_map_style(what: str, dataset: Any) -> None:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UnusableCode(
            f"{what} is a {type(dataset).__name__}: it needs __len__ and __getitem__ (map style), because the "
            "order of samples is fixed by seed and epoch, and resuming goes to a sample by its index",
            "not-map-style",
        )
