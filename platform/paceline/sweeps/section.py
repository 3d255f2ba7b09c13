"""The section `sweep` of a config, where there has to be one, and the number of its trials."""

import math

from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.errors import ConfigError, Problem


def section_of(config: ExperimentConfig) -> SweepConfig:
    """The config's `sweep` section.

    Raises:
        ConfigError: there is none.
    """
    if config.sweep is None:
        hint = "add one, such as sweep: {space: {optimizer.lr: [0.01, 0.1]}}"
        raise ConfigError([Problem("sweep", "there is no sweep section", "sweep", hint=hint)])
    return config.sweep


def trial_count(section: SweepConfig) -> int:
    """How many trials a sweep comes to, those included that are to be skipped; without a look at any of them."""
    points = section.num_samples
    if section.search == "grid" or points is None:
        points = math.prod(len(values) for values in section.lists.values())
    return points * section.seeds
