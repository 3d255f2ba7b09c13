"""Base class of the data configs, which build the training and validation sets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.config.data import DataSection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.utils.data import Dataset


def is_stream(dataset: Any) -> bool:
    """True for torch's `IterableDataset`, and for anything else that can be iterated over but has no samples by index.

    Imports torch.
    """
    from torch.utils.data import IterableDataset

    is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not is_indexed)


@dataclass(frozen=True)
class DataSets:
    """The data sets of an experiment, and how they are put into batches."""

    train: Any
    """Map-style data set, or an `IterableDataset`."""
    validation: "Mapping[str, Any]"
    """Map-style data sets by name. A single set has the empty name."""
    test: Any = None
    """Map-style data set for `paceline evaluate`; training never reads it."""
    collate_fn: "Callable[[list[Any]], Any] | None" = None
    """Makes a batch of a list of samples. None: the data set's own `collate_fn`, else torch's default."""
    sampler: Any = None
    """Gives the ids of an epoch's training samples, in order, as a `torch.utils.data.Sampler` does. It is seeded for
    each epoch. None: all samples, in a new order each epoch."""

    @property
    def roles(self) -> "dict[str, Any]":
        """Each set by its role: `training`, `validation` (or `validation/<name>`), `test`."""
        validation = {f"validation/{name}" if name else "validation": each for name, each in self.validation.items()}
        return {"training": self.train, **validation, **({} if self.test is None else {"test": self.test})}


class DataConfig(DataSection):
    """Two data sets, and how they reach the model."""

    def sets(self) -> DataSets:
        """The data sets of the experiment.

        Raises:
            EnvironmentFault: the data are not there and cannot be had.
            UnusableCode: the user's code gave something else.
        """
        train, validation = self.build()
        return DataSets(train, {"": validation})

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets.

        Raises:
            EnvironmentFault: the data are not there and cannot be had.
        """
        raise NotImplementedError
