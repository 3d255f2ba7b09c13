"""Number of optimizer steps, both for the preview before a run and for the run itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.config.sections import TrainerConfig


def epoch_steps(samples: int, global_batch_size: int, drop_last: bool) -> int:
    """Return the optimizer steps of one epoch; 0 if `drop_last` leaves out every sample.

    Args:
        samples: number of samples of the training set.
        global_batch_size: number of samples of one step, at least 1.
        drop_last: True if an incomplete last batch is left out.
    """
    full, rest = divmod(samples, global_batch_size)
    return full if drop_last or not rest else full + 1


def training_steps(trainer: "TrainerConfig", steps_per_epoch: int) -> int:
    """Return the optimizer steps of the training: `epochs` or `max_steps`, whichever ends first; 1 epoch by default."""
    if trainer.max_steps is None:
        return (trainer.epochs or 1) * steps_per_epoch
    if trainer.epochs is None:
        return trainer.max_steps
    return min(trainer.max_steps, trainer.epochs * steps_per_epoch)
