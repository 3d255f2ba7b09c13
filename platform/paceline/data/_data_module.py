"""The data sets of a LightningDataModule; lightning itself is not imported."""

from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler

from paceline.config.lightning import is_lightning_base


def is_data_module(found: Any) -> bool:
    """True for an instance of a LightningDataModule."""
    return any(is_lightning_base(each, "LightningDataModule") for each in type(found).__mro__)


def sets_of(module: Any) -> dict[str, Any]:
    """The data sets, the collation and the sampler of its loaders, as a builder returns them.

    Batch sizes, shuffling and loader processes are those of the config.
    """
    module.prepare_data()
    module.setup("fit")
    train = module.train_dataloader()
    parts = {"train": train.dataset, "collate_fn": train.collate_fn, "validation": []}
    if type(train.sampler) not in (RandomSampler, SequentialSampler) and hasattr(train.sampler, "__len__"):
        parts["sampler"] = train.sampler
    if _has_own(module, "val_dataloader"):
        parts["validation"] = _datasets(module.val_dataloader())
    if _has_own(module, "test_dataloader"):
        module.setup("test")
        parts["test"] = module.test_dataloader().dataset
    return parts


def _datasets(loaders: Any) -> Any:
    if not isinstance(loaders, list | tuple):
        return loaders.dataset
    return {str(index): each.dataset for index, each in enumerate(loaders)}


def _has_own(module: Any, method: str) -> bool:
    base = next(each for each in type(module).__mro__ if is_lightning_base(each, "LightningDataModule"))
    return getattr(type(module), method) is not getattr(base, method)
