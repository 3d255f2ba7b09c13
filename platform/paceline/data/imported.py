"""The user's own data sets, by import path."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.config.imports import WRAP_IN_FUNCTION, Called, Imported
from paceline.data.base import DataConfig, DataSets, is_stream
from paceline.errors import UnusableCode

if TYPE_CHECKING:
    from torch.utils.data import Dataset


_SPLIT = "Split one data set with torch.utils.data.random_split, or return (dataset, []) to train without validation"
KEYS = ("train", "validation", "test", "collate_fn", "sampler")
"""Keys of a mapping that the user's builder may return."""


class CalledDataConfig(Called, DataConfig):
    """A callable that takes `args` and returns `(train, validation)`, a mapping with the `KEYS`, or a
    LightningDataModule."""

    def sets(self) -> DataSets:
        """Call the user's builder.

        Raises:
            UnusableCode: it returned something else.
        """
        from paceline.data._data_module import is_data_module, sets_of

        found = self.call()
        if is_data_module(found):
            found = sets_of(found)
        if isinstance(found, tuple | list) and len(found) == 2:
            found = dict(zip(KEYS, found, strict=False))
        if not isinstance(found, Mapping) or not {"train", "validation"} <= found.keys() <= set(KEYS):
            raise UnusableCode(
                f"{self.chosen('data')} must return (train, validation), or a mapping with train, validation and, if "
                f"wanted, test, collate_fn and sampler, not {_kind(found)}. {self._wrap_or_split()}",
                "not-two-sets",
            )
        validation = found["validation"]
        named = validation if isinstance(validation, Mapping) else {"": validation}
        by_name = {str(name): each for name, each in named.items()}
        sets = DataSets(**{**found, "validation": by_name})
        self._check_parts(sets, validation)
        for role, dataset in sets.roles.items():
            if not (role == "training" and is_stream(dataset)):
                _check_map_style(f"{self.chosen('data')}: the {role} set", dataset)
        return sets

    def _wrap_or_split(self) -> str:
        target = self.load()
        return f"{target.__name__} is a class: {WRAP_IN_FUNCTION}" if isinstance(target, type) else _SPLIT

    def _check_parts(self, sets: DataSets, validation: Any) -> None:
        sampler, collate_fn = sets.sampler, sets.collate_fn
        wrong = ""
        if sampler is not None and not (hasattr(sampler, "__iter__") and hasattr(sampler, "__len__")):
            wrong = f"the sampler is a {type(sampler).__name__}: it needs __iter__ and __len__"
        elif collate_fn is not None and not callable(collate_fn):
            wrong = f"collate_fn is a {type(collate_fn).__name__}, which cannot be called"
        elif isinstance(validation, Mapping) and len(sets.validation) < len(validation):
            wrong = f"two validation sets have the same name, of {', '.join(map(str, validation))}"
        if wrong:
            raise UnusableCode(f"{self.chosen('data')}: {wrong}", "bad-data-part")

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training set and the first validation set."""
        sets = self.sets()
        return sets.train, next(iter(sets.validation.values()))


class ImportedDataConfig(Imported, CalledDataConfig):
    """`path` leads to a callable that takes `args` and returns `(train, validation)`, two map-style data sets, or a
    mapping: `train`, `validation` (a set, or a mapping of names to sets), `test`, `collate_fn`, `sampler`. Or a
    LightningDataModule."""


def _kind(found: Any) -> str:
    """Describe the value that a builder returned, such as `TensorDataset` or `tuple of 3`."""
    if isinstance(found, Mapping):
        return f"a mapping with {', '.join(map(str, found)) or 'nothing'}"
    return f"{type(found).__name__} of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__


def _check_map_style(what: str, dataset: Any) -> None:
    if is_stream(dataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UnusableCode(
            f"{what} is a {type(dataset).__name__}: it needs __len__ and __getitem__ (map style), because the "
            "order of samples is fixed by seed and epoch, and resuming goes to a sample by its index",
            "not-map-style",
        )
