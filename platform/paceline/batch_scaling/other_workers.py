"""Numbers of workers that a study compares, and its configs with others than the config's own."""

from collections.abc import Mapping
from contextlib import suppress
from math import log2

from paceline.batch_scaling.critical_batch import Rule
from paceline.batch_scaling.plan import StudyPlan
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError

MOST_SIZES = 3
"""Batch sizes whose steps are measured with another number of workers."""


def worker_counts(plan: StudyPlan) -> list[int]:
    """Return the numbers of workers of the table."""
    own = plan.workers
    if plan.section.workers != "auto":
        return sorted({own, *plan.section.workers})
    return sorted({max(1, own // 4), max(1, own // 2), own, 2 * own, 4 * own})


def other_worker_counts(plan: StudyPlan) -> list[int]:
    """Return the numbers of workers besides the config's own, the nearest first."""
    others = [count for count in worker_counts(plan) if count != plan.workers]
    return sorted(others, key=lambda count: abs(log2(count / plan.workers)))


def worker_configs(plan: StudyPlan, count: int, rules: Mapping[int, Rule]) -> dict[int, ExperimentConfig]:
    """Return configs with another number of workers, by batch size: at most `MOST_SIZES`, spread over those that the
    workers can share.

    Args:
        rules: by batch size.
    """
    found = {}
    for size, rule in sorted(rules.items()):
        overrides = {"data.global_batch_size": size, **plan.overrides(size, rule)}
        overrides |= {"scaling.num_workers": count, "scaling.min_workers": None}
        with suppress(ConfigError):  # the workers cannot share this batch
            config = plan.config.with_overrides(overrides)
            plan.shares_of(config, size)
            found[size] = config
    sizes = list(found)
    kept = {sizes[round(each * (len(sizes) - 1) / (MOST_SIZES - 1))] for each in range(MOST_SIZES)} if sizes else ()
    return {size: found[size] for size in sorted(kept)}
