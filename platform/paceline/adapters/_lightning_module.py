"""Inspection of a LightningModule: its overridden methods, its return values and its view of the trainer.

Does not import lightning.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from paceline.config.lightning import is_lightning_base
from paceline.errors import UnusableCode

CALLED = (
    *("configure_optimizers", "forward", "training_step", "validation_step", "print"),
    *("on_validation_epoch_start", "on_validation_epoch_end"),
)
"""Methods of a LightningModule that are called, by Paceline or by the module's own code."""
HOOK_PREFIXES = ("on_", "configure_")
OTHER_HOOKS = (
    *("backward", "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad", "prepare_data", "setup", "teardown"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "transfer_batch_to_device"),
    *("test_step", "predict_step"),
)


def lightning_base(module: torch.nn.Module) -> type:
    """The library's LightningModule among the classes that a module derives from.

    Raises:
        UnusableCode: it is not a LightningModule.
    """
    for each in type(module).__mro__:
        if is_lightning_base(each):
            return each
    raise UnusableCode(
        f"LightningTask needs a LightningModule, and the model is a {type(module).__name__}. Derive it from "
        "lightning.LightningModule, or use another task",
        "not-a-lightning-module",
        model=type(module).__name__,
    )


def has_own(module: torch.nn.Module, method: str) -> bool:
    """True if the user's class overrides a method of the LightningModule."""
    return getattr(type(module), method, None) is not getattr(lightning_base(module), method, None)


def uncalled_hooks(module: torch.nn.Module) -> list[str]:
    """Overridden hooks that only Lightning's own trainer calls."""
    names = [name for name in dir(lightning_base(module)) if name.startswith(HOOK_PREFIXES) or name in OTHER_HOOKS]
    return [name for name in names if name not in CALLED and name != "on_gpu" and has_own(module, name)]


class Configured(NamedTuple):
    """Result of `configure_optimizers` in one form."""

    optimizers: list[Optimizer]
    has_schedulers: bool


def configured(returned: Any) -> Configured:
    """Read the forms that Lightning documents: an optimizer, a list, two lists, a mapping, or several mappings.

    Raises:
        UnusableCode: it is another one.
    """
    if isinstance(returned, Optimizer):
        return Configured([returned], has_schedulers=False)
    if isinstance(returned, Mapping) and "optimizer" in returned:
        return Configured([returned["optimizer"]], returned.get("lr_scheduler") is not None)
    if isinstance(returned, Sequence) and returned and not isinstance(returned, str):
        if len(returned) == 2 and isinstance(returned[0], list | tuple):
            return Configured(list(returned[0]), bool(returned[1]))
        parts = [configured(each) for each in returned]
        return Configured([each for part in parts for each in part.optimizers], any(p.has_schedulers for p in parts))
    raise UnusableCode(
        f"configure_optimizers of the LightningModule returned {type(returned).__name__}. Return an optimizer, a "
        "list of them, or {'optimizer': ...}",
        "not-an-optimizer",
    )


def call_step(step: Any, batch: Any, index: int) -> Any:
    """Call `training_step` or `validation_step` with as many of batch, batch_idx and dataloader_idx as it takes.

    Raises:
        UnusableCode: it uses `self.logger`, which is None.
    """
    parameters = list(inspect.signature(step).parameters.values())
    takes_all = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    required = sum(each.default is inspect.Parameter.empty for each in parameters)
    try:
        return step(*(batch, index, 0)[: 2 if takes_all else max(required, min(len(parameters), 2))])
    except AttributeError as error:
        if error.obj is None and (str(error.name).startswith(("experiment", "log_"))):
            raise UnusableCode(
                f"self.logger.{error.name}: there is no logger in LightningTask. Use self.log for numbers, and a "
                "paceline.Callback for anything else",
                "no-logger",
            ) from error
        raise


def samples_of(batch: Any) -> int:
    """Return the length of the first tensor in a batch, as Lightning finds the batch size.

    Raises:
        UnusableCode: the batch contains no tensor.
    """
    found = _first_length(batch)
    if found is None:
        raise UnusableCode("the batch holds no tensor, so its number of samples is not known", "no-batch-size")
    return found


def _first_length(batch: Any) -> int | None:
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, str):
        return None
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, Sequence):
        return None
    return next((length for each in batch if (length := _first_length(each)) is not None), None)


class TrainerView:
    """Attributes that are available as `self.trainer` in the module."""

    logger = None
    sanity_checking = False
    progress_bar_callback = None

    def __init__(self) -> None:
        self.context: Any = None
        """The `TrainContext` of the training; None before it starts."""
        self.optimizers: list[Any] = []
        self.loggers: list[Any] = []
        self.training = True

    @property
    def current_epoch(self) -> int:
        """Epochs finished."""
        return 0 if self.context is None else int(self.context.epoch)

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return 0 if self.context is None else int(self.context.step)

    @property
    def global_rank(self) -> int:
        """Rank of this worker."""
        return 0 if self.context is None else int(self.context.rank)

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return 1 if self.context is None else int(self.context.world_size)

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0."""
        return self.global_rank == 0

    @property
    def max_epochs(self) -> int | None:
        """`trainer.epochs` of the config."""
        return None if self.context is None else self.context.config.trainer.epochs

    @property
    def max_steps(self) -> int:
        """`trainer.max_steps` of the config; -1 sets no limit, as in Lightning."""
        return -1 if self.context is None else self.context.config.trainer.max_steps or -1

    @property
    def estimated_stepping_batches(self) -> int:
        """Refuse: only schedulers need it.

        Raises:
            UnusableCode: always.
        """
        raise UnusableCode(
            "self.trainer.estimated_stepping_batches is not known: the learning rates follow the config's section "
            "lr_scheduler, such as {name: cosine, warmup_steps: 100}. Return the optimizer without a scheduler",
            "lightning-scheduler",
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.trainer.{name} is not available: the module is trained by Paceline's LightningTask, not by a "
            "lightning.Trainer"
        )
