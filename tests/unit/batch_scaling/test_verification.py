"""Whether a candidate is shown to be faster: Student's test of pairs, seed by seed, and the time of a step."""

import math

import numpy as np
import pytest
from scipy import stats

from paceline.batch_scaling.findings import Verification
from paceline.batch_scaling.texts import corrected_text
from paceline.batch_scaling.verification import LOOK_SHARES, Speedup, looks, speedup_of


def test_it_is_students_test_of_pairs_where_steps_take_equally_long() -> None:
    own, other = (10_000, 12_000, 11_000), (6_000, 9_000, 8_000)
    found = speedup_of(Verification((32,), own, (0.01,)), Verification((64,), other, (0.01,)), resolution=1.0)
    expected = stats.ttest_rel(np.log(own), np.log(other)).confidence_interval(0.95)
    assert found.log_ratio == pytest.approx(np.log(own).mean() - np.log(other).mean())
    assert np.log(found.interval(0.025)) == pytest.approx([expected.low, expected.high], rel=1e-6)
    assert found.lower_limit(0.025) == found.interval(0.025)[0]


def test_what_trainings_with_one_seed_have_in_common_is_no_uncertainty() -> None:
    own = Verification((32,), (8_000, 16_000, 12_000), (0.01,))
    found = speedup_of(own, Verification((64,), (6_000, 12_000, 9_100), (0.01,)), resolution=1.0)
    assert found.estimate == pytest.approx(4 / 3, rel=0.01)
    assert found.lower_limit(0.001) > 1.1


@pytest.mark.parametrize(("high", "text"), [(2.2, "2.20"), (7e27, "no limit")])
def test_an_interval_that_says_nothing_has_no_upper_end(high: float, text: str) -> None:
    assert corrected_text(4.5, 0.0, high) == f"corrected CI 0.00-{text}"


def test_more_seeds_would_show_the_same_more_surely() -> None:
    found = Speedup(0.2, 0.1, 0.03, 2)
    more = found.with_seeds(12)
    assert (more.log_ratio, more.seed_error, more.step_error, more.freedom) == (0.2, pytest.approx(0.05), 0.03, 11)
    assert found.standard_error == pytest.approx(0.1044, abs=1e-4)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 8])
def test_looks_come_one_after_the_other(num_seeds: int) -> None:
    planned = looks(num_seeds)
    assert planned[0] == num_seeds
    assert sorted(set(planned)) == list(planned)
    assert len(planned) == len(LOOK_SHARES)
    assert sum(LOOK_SHARES) == pytest.approx(1)


def test_the_time_of_a_sample_counts_and_its_scatter_widens_the_interval() -> None:
    own = Verification((32,), (10_000, 12_000), (0.010, 0.012, 0.010))
    calm, noisy = (
        Verification((64,), (10_000, 12_000), times) for times in ((0.005, 0.006, 0.005), (0.004, 0.008, 0.0047))
    )
    found = speedup_of(own, calm, 1.0)
    assert found.estimate == pytest.approx(2.0)
    assert speedup_of(own, noisy, 1.0).standard_error > found.standard_error


def test_equal_trainings_are_known_no_better_than_the_evaluations_tell() -> None:
    alike = Verification((32,), (10_000, 10_000, 10_000), (0.01,))
    found = speedup_of(alike, Verification((64,), (10_000, 10_000, 10_000), (0.01,)), resolution=1200.0)
    assert found.standard_error == pytest.approx(0.12 / math.sqrt(12) * math.sqrt(2 / 3))
