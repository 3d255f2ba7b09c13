"""The numbers that a LightningModule logs with `self.log`."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.errors import UnusableCode

WEIGHT = "|weight"
"""Ends the name of the sum of batch sizes that belongs to a mean."""
PREFIXES = ("val_", "val/", "valid_", "valid/", "validation_", "validation/")
"""Removed from names in validation, where Paceline's own prefix is `val/`."""


class LightningLog:
    """Collects logged values; replaces `LightningModule.log`."""

    def __init__(self) -> None:
        self.is_training = True
        self.default_batch_size = 1
        """Number of samples in the current batch."""
        self.newest: dict[str, Any] = {}
        """Values logged in the newest training step, by name."""
        self.sums: dict[str, float | torch.Tensor] = {}
        """Sums over the current validation batch: values times their batch size, and the batch sizes."""
        self.metrics: dict[str, Any] = {}
        """Metric objects logged in validation, such as torchmetrics'."""

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Take in a number, a tensor with one element, or a metric object.

        In training the newest step's value counts. In validation values are averaged over the set, weighted by
        `batch_size`, or added up with `reduce_fx="sum"`.

        Raises:
            UnusableCode: the value is none of these, or `reduce_fx` is neither a mean nor a sum.
        """
        if logger is False:
            return
        _require_number(name, value)
        if self.is_training:
            self.newest[name] = value.detach() if isinstance(value, torch.Tensor) else value
            return
        name = next((name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix)), name) or name
        if is_metric(value):
            self.metrics[name] = value
            return
        value = value.detach() if isinstance(value, torch.Tensor) else float(value)
        if reduce_fx in ("sum", torch.sum):
            self._add(name, value)
        elif reduce_fx in ("mean", torch.mean):
            size = batch_size or self.default_batch_size
            self._add(name, value * size)
            self._add(f"{name}{WEIGHT}", float(size))
        else:
            raise UnusableCode(
                f"self.log({name!r}) has reduce_fx={reduce_fx!r}, which is not supported in validation. Use 'mean' or "
                "'sum', or log a metric object",
                "reduce-fx",
                metric=name,
            )

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """`log` for each entry."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)

    def take_sums(self) -> dict[str, float | torch.Tensor]:
        """Return the sums of the current batch and reset them."""
        sums, self.sums = self.sums, {}
        return sums

    def _add(self, name: str, value: Any) -> None:
        before = self.sums.get(name)
        self.sums[name] = value if before is None else before + value


def _require_number(name: str, value: Any) -> None:
    if is_metric(value) or isinstance(value, int | float):
        return
    if (value.numel() if isinstance(value, torch.Tensor) else getattr(value, "size", 0)) == 1:
        return
    shape = f" of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    raise UnusableCode(
        f"self.log({name!r}) was given a {type(value).__name__}{shape}. Log a number, a tensor with one element or a "
        "metric object",
        "metric-not-a-number",
        metric=name,
    )


def means(sums: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The logged values of a whole set, from the sums over it."""
    return {
        name: each / sums[f"{name}{WEIGHT}"] if f"{name}{WEIGHT}" in sums else each
        for name, each in sums.items()
        if not name.endswith(WEIGHT)
    }


def number_of(value: Any) -> float | torch.Tensor:
    """Return a value logged in training as a number; of a metric object, its value over this worker's samples so far
    in the epoch."""
    if not is_metric(value):
        return value  # type: ignore[no-any-return]
    syncs = getattr(value, "sync_on_compute", None)  # torchmetrics', which would wait for the other workers
    if syncs is None:
        return value.compute()  # type: ignore[no-any-return]
    value.sync_on_compute = False
    try:
        return value.compute()  # type: ignore[no-any-return]
    finally:
        value.sync_on_compute = syncs


def is_metric(value: Any) -> bool:
    """True for an object with a metric's methods."""
    return all(callable(getattr(value, name, None)) for name in ("update", "compute", "reset"))


@contextmanager
def restored_metrics(module: nn.Module) -> Iterator[None]:
    """Afterwards all metric objects of a module are in the state in which they were."""
    metrics = [each for each in module.modules() if is_metric(each)]
    before = [copy.deepcopy(vars(metric)) for metric in metrics]
    try:
        yield
    finally:
        for metric, state in zip(metrics, before, strict=True):
            vars(metric).update(state)
