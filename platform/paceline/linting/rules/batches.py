"""Batches that cannot be made, or leave a GPU idle."""

from collections.abc import Iterator

from paceline.engine.collation import SAME_SHAPE
from paceline.linting.building import CollationFailed
from paceline.linting.finding import Fault
from paceline.linting.subject import Subject

SMALL = 8


def samples_of_different_shapes(subject: Subject) -> Iterator[Fault]:
    """Samples of which only some make a batch, so that training ends when others meet."""
    try:
        _ = subject.whole_batch
    except CollationFailed as error:
        yield Fault("data", f"{error}; the first ones do", SAME_SHAPE, "error")


def small_micro_batches(subject: Subject) -> Iterator[Fault]:
    """Small micro batches although larger ones are asked for by the step."""
    sizes = subject.settled_sizes
    if sizes is None or not subject.may_use_gpu or subject.config.parallel.strategy == "pipeline":
        return
    if sizes.micro_batch_size < SMALL and sizes.gradient_accumulation_steps > 1:
        number = sizes.gradient_accumulation_steps
        reason = f"a step is {number} micro batches of {sizes.micro_batch_size} samples, which leave a GPU idle"
        yield Fault("data.micro_batch_size", reason, "write micro_batch_size: max, with global_batch_size as it is now")
