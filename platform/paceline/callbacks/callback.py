"""The callback interface.

setup
load_state_dict                if the run resumes
on_train_start
for each epoch:
    for each optimizer step:
        forward, backward, update
        on_step_end
        on_evaluation_end      if the model was evaluated after this step
        (agree on stopping, save)
    on_epoch_end
on_train_end                   finished, stopped early or interrupted; not after an error
on_checkpoint                  on rank 0, once a checkpoint is committed
close                          last, also after an error

A hook that a class does not override costs nothing. An exception in a hook ends the run on all workers.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import UnusableCode

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from paceline.config.experiment import ExperimentConfig


class Control(IntEnum):
    """Request from a hook to the training loop. The workers agree on the largest request before it takes effect.

    A request from `on_evaluation_end` or `on_epoch_end` takes effect after that step; one from `on_step_end` after the
    same step on all workers, within about half a second (at once with one worker).
    """

    CONTINUE = 0
    SAVE = 1
    """Save a checkpoint after this step."""
    STOP = 2
    """Save a checkpoint and finish the run."""


class Progress(Protocol):
    """Progress of the training."""

    step: int
    epoch: int
    samples: int
    epoch_samples: int


class TrainContext:
    """View of the training for callbacks. One object for the whole run; its properties follow the training."""

    def __init__(
        self,
        *,
        model: "nn.Module",
        optimizer: "Optimizer",
        progress: Progress,
        device: "torch.device",
        rank: int,
        world_size: int,
        config: "ExperimentConfig",
        record: Callable[[str, float], None],
    ) -> None:
        self.model = model
        """The user's model, without the wrappers of DDP or the task."""
        self.optimizer = optimizer
        self.device = device
        self.rank = rank
        self.world_size = world_size
        self.config = config
        self._progress = progress
        self._record = record

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self._progress.step

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self._progress.epoch

    @property
    def samples(self) -> int:
        """Training samples consumed by all workers since the start, earlier attempts included."""
        return self._progress.samples

    @property
    def epoch_samples(self) -> int:
        """Training samples consumed by all workers since the epoch began; 0 at its end."""
        return self._progress.epoch_samples

    @property
    def is_main(self) -> bool:
        """True on rank 0, whose metrics are recorded."""
        return self.rank == 0

    def log(self, name: str, value: float) -> None:
        """Record a metric at the current step. Rank 0's value counts; other ranks may call it too.

        Args:
            name: as it appears in MLflow, such as `mine/sharpness`.
            value: a number, or a tensor with one element (reading it waits for the device).

        Raises:
            UnusableCode: MLflow takes no such name, or the value is not a number.
        """
        require_metric_name(name)
        try:
            number = None if getattr(value, "numel", lambda: 1)() != 1 else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None  # any other error is one of an earlier operation on the device
        if number is None:
            message = f"ctx.log: the value of {name!r} is a {type(value).__name__}: pass a number"
            raise UnusableCode(message, "metric-not-a-number", metric=name)
        self._record(name, number)


_METRIC_NAME = re.compile(r"[\w.\-: /]{1,250}")


@lru_cache(1024)
def require_metric_name(name: str) -> None:
    """Check that MLflow takes a metric of this name.

    Raises:
        UnusableCode: it does not.
    """
    is_text = isinstance(name, str) and _METRIC_NAME.fullmatch(name) is not None
    if not is_text or normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        raise UnusableCode(
            f"{name!r} cannot be the name of a metric: MLflow takes up to 250 letters, digits, spaces and _ - . : with "
            "single slashes between them",
            "metric-name",
            metric=str(name),
        )


class Callback:
    """Base class of callbacks. Runs on every worker; hooks observe and may return a `Control`.

    All workers must make the same collective operations in the same hooks, if they make any.
    """

    draws_random_numbers = False
    """True for a callback that draws from numpy's or Python's global generator. Each training step then seeds these as
    well, so that a resumed run draws the same numbers as an uninterrupted one. Seeding takes as long as a few
    operations of a small model. torch's generators are always seeded."""

    stop_reason = ""
    """Reason for returning `Control.STOP`, such as `val/loss below 0.1`. The result of the run shows it, or the name of
    the callback's class if it is empty."""

    def setup(self, ctx: TrainContext) -> None:
        """Called when model and optimizer are ready and no checkpoint is loaded yet. Create stateful objects here."""

    def on_train_start(self, ctx: TrainContext) -> None:
        """Called when training starts or resumes; the state of a checkpoint is loaded."""

    def on_step_end(self, ctx: TrainContext) -> Control | None:
        """Called after each optimizer step."""

    def on_evaluation_end(self, ctx: TrainContext, metrics: Mapping[str, float]) -> Control | None:
        """Called when the model was evaluated after this step.

        Args:
            metrics: the evaluation's results, such as `val/loss`; the same on all workers.
        """

    def on_epoch_end(self, ctx: TrainContext) -> Control | None:
        """An epoch is done."""

    def on_checkpoint(self, ctx: TrainContext, path: Path) -> None:
        """A checkpoint is committed. Called on rank 0, between two steps, on the training thread.

        Args:
            path: its folder.
        """

    def on_train_end(self, ctx: TrainContext) -> None:
        """The last step is done; the final checkpoint is saved afterwards."""

    def close(self) -> None:
        """Release the callback's resources; called last, also after an error."""

    def evaluation_context(self, ctx: TrainContext) -> AbstractContextManager[Any]:
        """Context in which the model is evaluated, such as with averaged weights."""
        raise NotImplementedError

    def state_dict(self) -> Mapping[str, Any]:
        """State to save with every checkpoint: nested mappings, lists, numbers, text and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; tensors arrive on the CPU."""


def overrides(callback: Callback, hook: str) -> bool:
    """True if the callback's class, or the object itself, defines a hook of its own."""
    return hook in vars(callback) or getattr(type(callback), hook) is not getattr(Callback, hook)
