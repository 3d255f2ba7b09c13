"""Intervals of predicted samples: from the scatter of seeds, and from the interval of the critical batch size."""

from dataclasses import replace
from math import exp, inf, log, sqrt
from statistics import geometric_mean

import numpy as np
import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch, expected_efficiency
from paceline.batch_scaling.goodput import goodput_table
from paceline.batch_scaling.prediction_spread import spread_of
from paceline.batch_scaling.step_time import StepTimeModel
from support.batch_scaling.findings import findings

OWN, CRITICAL, SIZES = 32, 400.0, (32, 64, 128, 256)


def critical_of(low: float, high: float) -> CriticalBatch:
    return CriticalBatch(CRITICAL, CRITICAL, CRITICAL, ((0, CRITICAL),), (low, high))


def test_without_an_interval_of_the_critical_batch_size_there_is_none() -> None:
    assert spread_of(replace(critical_of(1.0, 2.0), interval=None), OWN, [10_000], SIZES) == {}


def test_the_config_s_own_batch_has_the_scatter_of_its_seeds_alone() -> None:
    few, many = (
        spread_of(critical_of(100.0, inf), OWN, own, SIZES)[OWN] for own in ([10_000], [9_000, 10_000, 11_000])
    )
    assert few[0] == few[1] > many[0] == many[1] > 0.1


def test_a_larger_batch_has_the_error_of_the_critical_batch_size_too() -> None:
    lower, higher = spread_of(critical_of(100.0, inf), OWN, [10_000] * 3, SIZES)[256]
    of_seeds, _ = spread_of(critical_of(CRITICAL, CRITICAL), OWN, [10_000] * 3, SIZES)[256]
    most, expected = (1 / expected_efficiency(256, OWN, each) for each in (100.0, CRITICAL))
    assert higher == pytest.approx(sqrt(of_seeds**2 + log(most / expected) ** 2))
    assert lower == pytest.approx(sqrt(of_seeds**2 + log(expected) ** 2)), "with any size, none has fewer samples"


def test_the_intervals_hold_in_95_of_100_studies() -> None:
    draw, covered, studies = np.random.default_rng(0), dict.fromkeys(SIZES, 0), 300
    truth = {size: log(10_000 / expected_efficiency(size, OWN, CRITICAL)) for size in SIZES}
    for _ in range(studies):
        own = [round(10_000 * exp(draw.normal(0, 0.15))) for _ in range(3)]
        measured = CRITICAL * exp(draw.normal(0, 0.3))
        critical = CriticalBatch(measured, measured, measured, (), (measured * exp(-0.59), measured * exp(0.59)))
        for size, (lower, higher) in spread_of(critical, OWN, own, SIZES).items():
            predicted = log(geometric_mean(own) / expected_efficiency(size, OWN, measured))
            covered[size] += predicted - lower <= truth[size] <= predicted + higher
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
        spread=dict.fromkeys(SIZES, (0.2, 0.1)),
        step_error=0.15,
    )
    for row in rows:
        assert row.samples_interval == pytest.approx((row.samples * exp(-0.2), row.samples * exp(0.1)))
        lower, higher = (each if row.workers == 1 else sqrt(each**2 + 0.3**2) for each in (0.2, 0.1))
        assert row.seconds_interval == pytest.approx((row.seconds * exp(-lower), row.seconds * exp(higher)))
    assert len({row.workers for row in rows}) == 2
