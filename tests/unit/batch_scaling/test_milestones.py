"""Samples to a target, estimated from several values of the metric on the way to it."""

from collections.abc import Sequence
from statistics import geometric_mean, stdev
from typing import Any

import numpy as np
import pytest

from paceline.batch_scaling.findings import TargetMetric
from paceline.batch_scaling.milestones import Passed, milestones_of, passed_in, shares_of, smoothed_samples

TARGET = TargetMetric("val/accuracy", 0.95, "max")


def trained(values: Sequence[float], every: int = 100, name: str = "val/accuracy") -> dict[str, Any]:
    """The answer of a training with these values, one each `every` samples."""
    return {"evaluations": [[every * number, {name: value}] for number, value in enumerate(values, 1)]}


def passed(milestones: Sequence[TargetMetric], *trainings: dict[str, Any]) -> list[Passed]:
    """Samples to each milestone of trainings that have reached the target."""
    found = [passed_in(milestones, each) for each in trainings]
    return [each for each in found if each is not None]


RISING = [0.5 + 0.046 * number for number in range(1, 11)]
"""The target is reached by the tenth."""


def test_a_training_of_the_same_shape_takes_as_many_times_the_samples() -> None:
    milestones = milestones_of(TARGET, trained(RISING))
    assert milestones[-1] == TARGET
    assert [each.value for each in milestones[:-1]] == pytest.approx(RISING[5:9])
    shares = shares_of(passed(milestones, trained(RISING)))
    for every in (100, 70, 230):
        (other,) = passed(milestones, trained(RISING, every))
        assert smoothed_samples(other, shares) == pytest.approx(10 * every)


def test_the_mean_of_the_trainings_that_the_shares_are_from_is_that_of_the_target_itself() -> None:
    later = [*RISING[:7], *RISING[6:9], 0.94, 0.96]
    own = [trained(RISING), trained(later), trained(RISING, 120)]
    found = passed(milestones_of(TARGET, own[0]), *own)
    smoothed = [smoothed_samples(each, shares_of(found)) for each in found]
    assert geometric_mean(smoothed) == pytest.approx(geometric_mean(each[-1] for each in found))
    assert smoothed != pytest.approx([each[-1] for each in found], rel=0.01)


def test_a_lower_value_is_better_where_the_mode_says_so() -> None:
    target = TargetMetric("val/loss", 1 - 0.95, "min")
    falling = trained([1 - value for value in RISING], name="val/loss")
    milestones = milestones_of(target, falling)
    assert [each.value for each in milestones[:-1]] == pytest.approx([1 - value for value in RISING[5:9]])
    assert passed(milestones, falling) == passed(milestones_of(TARGET, trained(RISING)), trained(RISING))


def test_a_target_that_is_soon_reached_is_the_only_milestone() -> None:
    nothing = {"evaluations": [[40, {}], [60, {"val/accuracy": float("nan")}], [100, {"val/accuracy": 0.96}]]}
    assert milestones_of(TARGET, nothing) == (TARGET,)
    assert passed_in((TARGET,), trained(RISING)) == (1_000,)


def test_a_training_that_comes_close_to_the_target_has_not_passed_it() -> None:
    assert passed_in(milestones_of(TARGET, trained(RISING)), trained(RISING[:9])) is None


def test_a_peak_is_not_what_the_config_as_it_is_can_do_by_then() -> None:
    values = [*RISING[:4], 0.94, *RISING[5:]]
    assert all(each.value < 0.94 for each in milestones_of(TARGET, trained(values))[:-1])


def noisy(random: np.random.Generator, speed: float) -> dict[str, Any]:
    """A training whose evaluations scatter by more than they grow."""
    samples = speed * 500 * np.arange(1, 80)
    return trained(list(1 - 5 / np.sqrt(samples) + random.normal(0, 0.004, len(samples))), 500)


def test_it_scatters_less_than_the_first_evaluation_at_the_target() -> None:
    random = np.random.default_rng(0)
    own, other = ([noisy(random, speed) for _ in range(60)] for speed in (1.0, 1.25))
    milestones = milestones_of(TARGET, own[0])
    mine, theirs = passed(milestones, *own), passed(milestones, *other)
    smoothed = [np.log(smoothed_samples(each, shares_of(mine))) for each in theirs]
    assert stdev(smoothed) < 0.8 * stdev(np.log(each[-1]) for each in theirs)
    ratio = np.mean([np.log(each[-1]) for each in mine]) - np.mean(smoothed)
    assert ratio == pytest.approx(np.log(1.25), abs=0.04)
