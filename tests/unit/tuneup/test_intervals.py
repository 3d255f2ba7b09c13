"""The interval of a speedup: right on what can be computed by hand, and holding what it promises under ugly noise."""

from math import exp, inf, log

import numpy as np
import numpy.typing as npt
import pytest

from paceline.tuneups.statistics.intervals import Interval, signed_rank_interval, speedup

Array = npt.NDArray[np.float64]


def test_equal_ratios_are_that_ratio_and_swapping_the_two_inverts_the_interval() -> None:
    assert speedup([1.2, 2.4, 3.6] * 3, [1.0, 2.0, 3.0] * 3) == pytest.approx((1.2, 1.2, 1.2))
    draw = np.random.default_rng(0)
    one, other = draw.uniform(1, 2, 15), draw.uniform(1, 2, 15)
    there, back = speedup(list(one), list(other)), speedup(list(other), list(one))
    assert (1 / back.estimate, 1 / back.high, 1 / back.low) == pytest.approx(there)


def test_the_interval_is_that_of_the_signed_rank_test() -> None:
    """Tables give 8 as the largest rank sum that is rejected at 5 % with 10 values: the ninth mean from each end."""
    values = np.log(np.array([1.01, 1.03, 0.97, 1.08, 1.11, 1.02, 1.19, 1.05, 1.23, 0.95]))
    means = sorted((one + other) / 2 for at, one in enumerate(values) for other in values[at:])
    found = signed_rank_interval(values, 0.05)
    assert found == pytest.approx((np.median(means), means[8], means[-9]))


@pytest.mark.parametrize(("count", "rejected"), [(6, 0), (8, 3), (15, 25), (20, 52), (25, 89)])
def test_how_many_rank_sums_are_rejected_is_as_tables_say(count: int, rejected: int) -> None:
    values = np.linspace(0, 1, count) ** 3
    rows, columns = np.triu_indices(count)
    means = np.sort((values[rows] + values[columns]) / 2)
    assert signed_rank_interval(values, 0.05).low == means[rejected]


def test_few_pairs_have_a_wide_interval_or_none() -> None:
    assert speedup([], []) == (1.0, 0.0, inf)
    assert speedup([1.5], [1.0]) == pytest.approx((1.5, 0.0, inf))
    assert speedup([1e-300, 1e300], [1.0, 1.0]).high == inf
    assert Interval(1.214, 1.18, 1.253).text() == "1.21 (1.18-1.25)"
    two = speedup([1.1, 1.2], [1.0, 1.0])
    middle, half = (log(1.1) + log(1.2)) / 2, 12.7062 * (log(1.2) - log(1.1)) / 2
    assert two == pytest.approx((exp(middle), exp(middle - half), exp(middle + half)), rel=1e-3)
    assert signed_rank_interval(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), 0.05) == (pytest.approx(0.3), -inf, inf)


def test_a_burst_moves_it_hardly() -> None:
    draw = np.random.default_rng(1)
    baseline, technique = 1.1 * np.exp(draw.normal(0, 0.01, 24)), np.exp(draw.normal(0, 0.01, 24))
    technique[[3, 7]] *= 10
    found = speedup(list(baseline), list(technique))
    assert found.estimate == pytest.approx(1.1, rel=0.02)
    assert 1.0 < found.low < 1.1 < found.high < 1.15
    assert exp(float(np.mean(np.log(baseline / technique)))) < 0.95


def disturbed(draw: np.random.Generator, windows: int) -> Array:
    """Seconds of windows one after another: they become slower and slower, with bursts that last for several."""
    seconds = np.exp(np.linspace(0, 1.0, windows) + draw.normal(0, 0.02, windows))
    for start in draw.integers(windows, size=windows // 10):
        seconds[start : start + draw.integers(2, 6)] *= draw.uniform(1.5, 4)
    return seconds


@pytest.mark.parametrize(
    "count", [pytest.param(6, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow), 30]
)
def test_it_holds_the_truth_whatever_the_machine_does(count: int) -> None:
    draw = np.random.default_rng(2)

    def holds() -> bool:
        in_random_order = draw.permuted([[0, 1]] * count, axis=1)
        both = np.take_along_axis(disturbed(draw, 2 * count).reshape(count, 2), in_random_order, axis=1)
        found = speedup(list(1.07 * both[:, 0]), list(both[:, 1]))
        return found.low <= 1.07 <= found.high

    assert np.mean([holds() for _ in range(1000)]) > 0.935


@pytest.mark.parametrize(("baseline", "technique"), [([1.0], []), ([1.0, 0.0], [1.0, 1.0]), ([1.0], [float("nan")])])
def test_what_are_no_times_is_refused(baseline: list[float], technique: list[float]) -> None:
    with pytest.raises(ValueError, match=r"paired|positive"):
        speedup(baseline, technique)
