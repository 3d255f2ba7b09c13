"""Samples to a target, estimated from several values of the metric on the way to it."""

from collections.abc import Sequence
from statistics import geometric_mean, stdev
from typing import Any

import numpy as np
import pytest

from paceline.batch_scaling.findings import TargetMetric
from paceline.batch_scaling.milestones import Milestones
from paceline.batch_scaling.target import reached_in

TARGET = TargetMetric("val/accuracy", 0.95, "max")


def trained(values: Sequence[float], every: int = 100, name: str = "val/accuracy") -> dict[str, Any]:
    """The answer of a training with these values, one each `every` samples."""
    return {"evaluations": [[every * number, {name: value}] for number, value in enumerate(values, 1)]}


RISING = [0.5 + 0.046 * number for number in range(1, 11)]
"""The target is reached by the tenth."""


def test_a_training_of_the_same_shape_takes_as_many_times_the_samples() -> None:
    milestones = Milestones.of(TARGET, [trained(RISING)])
    assert milestones.values[-1] == TARGET
    assert [each.value for each in milestones.values[:-1]] == RISING[5:9]
    for every in (100, 70, 230):
        assert milestones.samples_to_target(trained(RISING, every)) == pytest.approx(10 * every)


def test_the_mean_over_the_seeds_of_the_config_as_it_is_is_that_of_the_target_itself() -> None:
    later = [*RISING[:7], *RISING[6:9], 0.94, 0.96]
    own = [trained(RISING), trained(later), trained(RISING, 120)]
    milestones = Milestones.of(TARGET, own)
    reached = [reached_in(each, TARGET) or 0 for each in own]
    smoothed = [milestones.samples_to_target(each) for each in own]
    assert geometric_mean(smoothed) == pytest.approx(geometric_mean(reached))
    assert smoothed != pytest.approx(reached, rel=0.01)


def test_a_lower_value_is_better_where_the_mode_says_so() -> None:
    target = TargetMetric("val/loss", 1 - 0.95, "min")
    falling = [1 - value for value in RISING]
    milestones = Milestones.of(target, [trained(falling, name="val/loss")])
    assert [each.value for each in milestones.values[:-1]] == falling[5:9]
    assert milestones.samples_to_target(trained(falling, 50, "val/loss")) == pytest.approx(500)


def test_a_target_that_is_soon_reached_is_the_only_milestone() -> None:
    nothing = {"evaluations": [[40, {}], [60, {"val/accuracy": float("nan")}], [100, {"val/accuracy": 0.96}]]}
    milestones = Milestones.of(TARGET, [nothing])
    assert milestones == Milestones((TARGET,), (1.0,))
    assert milestones.samples_to_target(trained(RISING)) == pytest.approx(1_000)


def noisy(random: np.random.Generator, speed: float) -> dict[str, Any]:
    """A training whose evaluations scatter by more than they grow."""
    samples = speed * 500 * np.arange(1, 80)
    return trained(list(1 - 5 / np.sqrt(samples) + random.normal(0, 0.004, len(samples))), 500)


def test_it_scatters_less_than_the_first_evaluation_at_the_target() -> None:
    random = np.random.default_rng(0)
    own, other = ([noisy(random, speed) for _ in range(60)] for speed in (1.0, 1.25))
    milestones = Milestones.of(TARGET, own[:3])
    smoothed = [np.log(milestones.samples_to_target(each)) for each in other]
    first = [np.log(reached_in(each, TARGET) or 0) for each in other]
    assert stdev(smoothed) < 0.8 * stdev(first)
    ratio = np.mean([np.log(milestones.samples_to_target(each)) for each in own]) - np.mean(smoothed)
    assert ratio == pytest.approx(np.log(1.25), abs=0.04)
