"""Configs whose batch sizes cannot be studied, and why."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, Problem


def unstudied(config: ExperimentConfig, facts: Mapping[str, Any]) -> list[Problem]:
    """Return the problems that prevent a study of the config's batch sizes."""
    wrong = (
        (
            facts["train_samples"] is None,
            "data",
            "is a stream or a sampler of unknown length, and branches need a known one",
            "take a map-style data set",
        ),
        (
            config.data.batch_size_schedule is not None,
            "data.batch_size_schedule",
            "changes the batch size that the study is about",
            "write data.global_batch_size in its place",
        ),
        (
            config.data.micro_batch_size == "max",
            "data.micro_batch_size",
            "is another one for each batch size, so that step times cannot be compared",
            "write a number, or leave it out",
        ),
        (
            config.optimizer.lr_scaling == "adascale",
            "optimizer.lr_scaling",
            "follows the noise by itself: there is no rule to find",
            "write lr_scaling: none",
        ),
        (
            facts["builds_optimizers"],
            "task",
            "makes its optimizers itself, so that no learning-rate rule reaches them",
            "name an optimizer in the config",
        ),
    )
    return [Problem("not-studied", reason, key, hint=hint) for is_wrong, key, reason, hint in wrong if is_wrong]


def check_sizes(sizes: Iterable[int], build: Callable[[int], object]) -> None:
    """Check that the config with each batch size is valid.

    Args:
        build: builds the config for a batch size.

    Raises:
        ConfigError: one is not; the place is `scale.batch_sizes`.
    """
    for size in sizes:
        try:
            build(size)
        except ConfigError as error:
            reason = f"a batch of {size:,} cannot be trained: {error.problems[0].reason}"
            hint = "name sizes that workers, micro-batches and accumulation divide"
            raise ConfigError([Problem("not-studied", reason, "scale.batch_sizes", hint=hint)]) from error
