"""Batches that leave a GPU idle."""

from collections.abc import Iterator

from paceline.linting.finding import Fault
from paceline.linting.subject import Subject

SMALL = 8


def small_micro_batches(subject: Subject) -> Iterator[Fault]:
    """Small micro batches although larger ones are asked for by the step."""
    sizes = subject.settled_sizes
    if sizes is None or not subject.may_use_gpu or subject.config.parallel.strategy == "pipeline":
        return
    if sizes.micro_batch_size < SMALL and sizes.gradient_accumulation_steps > 1:
        number = sizes.gradient_accumulation_steps
        reason = f"a step is {number} micro batches of {sizes.micro_batch_size} samples, which leave a GPU idle"
        yield Fault("data.micro_batch_size", reason, "write micro_batch_size: max, with global_batch_size as it is now")
