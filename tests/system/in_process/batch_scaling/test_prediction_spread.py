"""Intervals of predicted samples: from seeds that each predict by themselves."""

from math import exp, log, sqrt
from statistics import stdev

import numpy as np
import pytest
from scipy.stats import t

from paceline.batch_scaling.critical_batch import Branch, expected_efficiency
from paceline.batch_scaling.goodput import goodput_table
from paceline.batch_scaling.prediction_spread import spread_of
from paceline.batch_scaling.step_time import StepTimeModel
from support.batch_scaling.findings import findings

OWN, CRITICAL, SIZES = 32, 400.0, (32, 64, 128, 256)


def branches_of(seed: int, noise: float = 0.0, draw: np.random.Generator | None = None) -> list[Branch]:
    """Branches of a seed with two batch sizes, whose efficiency is that of the trade-off but for the noise."""
    found = []
    for size in (64, 256):
        error = draw.normal(0, noise) if draw is not None else 0.0
        efficiency = expected_efficiency(size, OWN, CRITICAL) * exp(error)
        found.append(Branch(0, size, "linear", seed, 4_000, 0.5, efficiency))
    return found


def test_one_seed_tells_nothing_about_the_next() -> None:
    assert spread_of(branches_of(0), {0: 10_000}, OWN, SIZES) == {}
    assert spread_of(branches_of(0), {0: 10_000, 1: 12_000}, OWN, SIZES) == {}, "the other has no branches"


def test_seeds_that_differ_in_their_own_samples_alone_have_students_interval() -> None:
    own = {0: 8_704, 1: 12_288, 2: 10_240}
    branches = [branch for seed in own for branch in branches_of(seed)]
    half = t.ppf(0.975, 2) * stdev(map(log, own.values())) / sqrt(3)
    assert spread_of(branches, own, OWN, SIZES) == pytest.approx(dict.fromkeys(SIZES, half), rel=1e-6)


def test_the_intervals_hold_in_95_of_100_studies() -> None:
    draw, covered, studies = np.random.default_rng(0), dict.fromkeys(SIZES, 0), 300
    for _ in range(studies):
        own = {seed: round(10_000 * exp(draw.normal(0, 0.15))) for seed in range(3)}
        branches = [branch for seed in own for branch in branches_of(seed, 0.05, draw)]
        spread = spread_of(branches, own, OWN, SIZES)
        for size in SIZES:
            each = [log(samples / expected_efficiency(size, OWN, CRITICAL)) for samples in own.values()]
            truth = log(10_000 / expected_efficiency(size, OWN, CRITICAL))
            covered[size] += abs(np.mean(each) - truth) <= spread[size]
    assert {size: 0.91 <= count / studies <= 0.99 for size, count in covered.items()} == dict.fromkeys(SIZES, True)


def test_a_step_that_was_not_measured_widens_the_interval_of_the_time() -> None:
    model = StepTimeModel(0.002, 1e-5, 0.0, False)
    rows = goodput_table(
        SIZES,
        [1, 2],
        own_batch_size=OWN,
        own_samples=10_000,
        largest_trained=256,
        critical=findings().critical,  # type: ignore[arg-type]
        seconds_per_step={(size, 1): model.seconds(size, 1, 1) for size in SIZES},
        step_time=model,
        micro_batch_size=dict(zip(SIZES, SIZES, strict=True)),
        lr=dict.fromkeys(SIZES, 0.1),
        most_samples=1e9,
        spread=dict.fromkeys(SIZES, 0.2),
        step_error=0.15,
    )
    for row in rows:
        assert row.samples_interval == pytest.approx((row.samples * exp(-0.2), row.samples * exp(0.2)))
        half = 0.2 if row.workers == 1 else sqrt(0.2**2 + 0.3**2)
        assert row.seconds_interval == pytest.approx((row.seconds * exp(-half), row.seconds * exp(half)))
    assert len({row.workers for row in rows}) == 2
