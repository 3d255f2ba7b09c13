"""The `sweep` section of a config, and the number of its trials."""

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
    planned_trials = section.num_samples
    if section.search == "grid" or planned_trials is None:
        planned_trials = math.prod(len(values) for values in section.lists.values())
    return planned_trials * section.seeds
