"""Whether a candidate is shown to be faster: moderated Student's test, seed by seed, and the time of a step."""

import math

import numpy as np
import pytest
from scipy import stats

from paceline.batch_scaling import speedup
from paceline.batch_scaling.findings import Verification
from paceline.batch_scaling.speedup import LEVELS, LOOK_SHARES, Speedup, looks, moderated_scatter, speedup_of
from paceline.batch_scaling.texts import corrected_text


def measured(sizes: tuple[int, ...], samples: tuple[int, ...], seconds: tuple[float, ...]) -> Verification:
    """Trainings that come to each milestone as expected."""
    return Verification(sizes, samples, tuple(map(float, samples)), seconds)


def test_it_is_students_test_of_pairs_where_steps_take_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedup, "USUAL_FREEDOM", 0)  # nothing is known of the scatter of other models
    own, other = (10_000, 12_000, 11_000), (6_000, 9_000, 8_000)
    found = speedup_of(measured((32,), own, (0.01,)), measured((64,), other, (0.01,)), resolution=1.0)
    expected = stats.ttest_rel(np.log(own), np.log(other)).confidence_interval(0.95)
    assert found.log_ratio == pytest.approx(np.log(own).mean() - np.log(other).mean())
    assert np.log(found.interval(0.025)) == pytest.approx([expected.low, expected.high], rel=1e-6)
    assert found.lower_limit(0.025) == found.interval(0.025)[0]


def test_what_trainings_with_one_seed_have_in_common_is_no_uncertainty() -> None:
    own = measured((32,), (8_000, 16_000, 12_000), (0.01,))
    found = speedup_of(own, measured((64,), (6_000, 12_000, 9_100), (0.01,)), resolution=1.0)
    assert found.estimate == pytest.approx(4 / 3, rel=0.01)
    assert found.lower_limit(0.01) > 1.0


def test_the_scatter_of_few_seeds_is_moderated_and_that_of_many_is_their_own() -> None:
    usual = speedup.USUAL_SCATTER
    assert moderated_scatter([0.3]) == usual
    assert usual / 2 < moderated_scatter([0.3, 0.3, 0.3]) < usual < moderated_scatter([-0.3, 0.3]) < 0.3 * math.sqrt(2)
    many = np.random.default_rng(0).normal(0.2, 0.02, 2_000).tolist()
    assert moderated_scatter(many) == pytest.approx(0.02, rel=0.1)


def is_recommended(logs: np.ndarray, level: float) -> bool:
    """Return True if a candidate is shown to be faster at a look before further seeds are given up."""
    for num_seeds, share in zip(looks(3), LOOK_SHARES, strict=True):
        scatter = moderated_scatter(logs[:num_seeds].tolist())
        found = Speedup(float(logs[:num_seeds].mean()), scatter, num_seeds, 0.0)
        if found.lower_limit(level * share) > 1:
            return True
        if not found.with_seeds(looks(3)[-1]).lower_limit(level * LOOK_SHARES[-1]) > 1:
            return False
    return False


@pytest.mark.parametrize("scatter", [0.05, 0.12, 0.2, 0.25])
def test_a_false_recommendation_is_seldom_however_much_the_samples_scatter(scatter: float) -> None:
    logs = np.random.default_rng(1).normal(0.0, scatter, (6_000, max(looks(3))))
    false = sum(is_recommended(each, LEVELS[0]) for each in logs)
    assert false <= 0.05 * len(logs)


def test_a_gain_like_that_of_a_measured_grid_is_recommended() -> None:
    """`docs/records/2026-11-29_cpu_batch_size_efficientnet`: 1.43x, which scatters by 0.16 even without milestones."""
    logs = np.random.default_rng(1).normal(math.log(1.43), 0.16, (500, max(looks(3))))
    assert sum(is_recommended(each, LEVELS[0]) for each in logs) >= 0.9 * len(logs)


@pytest.mark.parametrize(("high", "text"), [(2.2, "2.20"), (7e27, "no limit")])
def test_an_interval_that_says_nothing_has_no_upper_end(high: float, text: str) -> None:
    assert corrected_text(4.5, 0.0, high) == f"corrected CI 0.00-{text}"


def test_more_seeds_would_show_the_same_more_surely() -> None:
    found = Speedup(0.2, 0.1, 4, 0.03)
    more = found.with_seeds(16)
    assert (more.estimate, more.freedom - found.freedom) == (found.estimate, 12)
    assert found.standard_error == pytest.approx(math.hypot(0.05, 0.03))
    assert more.standard_error == pytest.approx(math.hypot(0.025, 0.03))
    assert more.lower_limit(0.01) > found.lower_limit(0.01)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 8])
def test_looks_come_one_after_the_other(num_seeds: int) -> None:
    planned = looks(num_seeds)
    assert planned[0] == num_seeds
    assert sorted(set(planned)) == list(planned)
    assert len(planned) == len(LOOK_SHARES)
    assert sum(LOOK_SHARES) == pytest.approx(1)


def test_the_time_of_a_sample_counts_and_its_scatter_widens_the_interval() -> None:
    own = measured((32,), (10_000, 12_000), (0.010, 0.012, 0.010))
    calm, noisy = (
        measured((64,), (10_000, 12_000), times) for times in ((0.005, 0.006, 0.005), (0.004, 0.008, 0.0047))
    )
    found = speedup_of(own, calm, 1.0)
    assert found.estimate == pytest.approx(2.0)
    assert speedup_of(own, noisy, 1.0).standard_error > found.standard_error


def test_equal_trainings_are_known_no_better_than_the_evaluations_tell() -> None:
    alike = measured((32,), (10_000, 10_000, 10_000), (0.01,))
    found = speedup_of(alike, measured((64,), (10_000, 10_000, 10_000), (0.01,)), resolution=4_000.0)
    assert found.scatter == pytest.approx(0.4 / math.sqrt(12) * math.sqrt(2))
