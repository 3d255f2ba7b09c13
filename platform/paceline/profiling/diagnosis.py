"""Splits the steps of a config, and names what holds them up, with the second split that this takes."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.config.batch_sizes import ACCUMULATION, GLOBAL, MICRO, BatchSizes, at_largest_stage, batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.engine.trainer import Trainer
from paceline.errors import ConfigError
from paceline.profiling.bottleneck import Bottleneck, BottleneckFacts, name_bottleneck
from paceline.profiling.parts import StepSplit
from paceline.profiling.splitting import split_steps

LARGER = 4
"""The second split is at so many times the micro batch."""


@dataclass(frozen=True)
class Diagnosis:
    """Measured split of a step, and the diagnosis."""

    split: StepSplit
    larger: StepSplit | None
    """With `LARGER` times the micro batch; None where no step has so many samples."""
    bottleneck: Bottleneck


def diagnose(
    config: ExperimentConfig, build: Callable[[ExperimentConfig], Trainer], steps: int = 30, warm_up: int = 5
) -> Diagnosis:
    """Measure some steps of a config, and as many of larger ones. Every rank must call it.

    Of a batch-size schedule, the steps of the largest batch are measured.

    Args:
        build: a new trainer from a config, such as `build_trainer` with ranks and a reporter.
        steps: optimizer steps to measure, twice.
        warm_up: optimizer steps before, which are not measured.

    Raises:
        ConfigError: in a pipeline a step has no such parts.
        torch.OutOfMemoryError: the larger micro batch does not fit.
    """
    split = split_steps(build(config.with_overrides(at_largest_stage(config))), steps, warm_up)
    enlarged = with_larger_micro_batch(config, split.samples)
    larger = None if enlarged is None else split_steps(build(enlarged), steps, warm_up)
    return Diagnosis(split, larger, name_bottleneck(split, config, BottleneckFacts(larger)))


def with_larger_micro_batch(config: ExperimentConfig, samples: int) -> ExperimentConfig | None:
    """The config with `LARGER` times the micro batch and the global batch; None where that is impossible.

    Args:
        samples: of the training set.
    """
    sizes = batch_sizes(config)
    if not isinstance(sizes, BatchSizes) or sizes.global_batch_size * LARGER > samples:
        return None
    larger = {
        GLOBAL: sizes.global_batch_size * LARGER,
        MICRO: sizes.micro_batch_size * LARGER,
        ACCUMULATION: sizes.gradient_accumulation_steps,
    }
    try:
        return config.with_overrides(larger)
    except ConfigError:
        return None
