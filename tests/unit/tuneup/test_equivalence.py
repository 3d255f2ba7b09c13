"""Whether quality is kept, over seeds: what is broken must not pass, and what is the same can be shown to be."""

from itertools import product
from math import inf

import numpy as np
import pytest

from paceline.tuneups.statistics.equivalence import QualityComparison, compare_quality, seeds_needed

SPREADS = (0.001, 0.002, 0.005, 0.009)
"""Standard deviations of the validation accuracy over seeds, as docs/records has them for the shipped CNN."""


def simulated(spread: float, drop: float, margin: float, seeds: int, count: int = 1000) -> list[QualityComparison]:
    """Comparisons of accuracies over 1,000 samples."""
    draw = np.random.default_rng(seeds)
    before = draw.normal(0.965, spread, (count, seeds)).round(3)
    after = draw.normal(0.965 - drop, spread, (count, seeds)).round(3)
    return [compare_quality(list(b), list(a), margin, "max") for b, a in zip(before, after, strict=True)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("spread", "seeds"), [(0.005, 3), *(pytest.param(*case, marks=SLOW) for case in product(SPREADS, (2, 3, 5)))]
)
def test_a_drop_of_the_margin_seldom_passes_and_twice_the_margin_hardly_ever(spread: float, seeds: int) -> None:
    for margin in (0.005, 0.01):
        at_margin = simulated(spread, margin, margin, seeds)
        assert np.mean([it.verdict == "equivalent" for it in at_margin]) <= 0.065  # with two deviations of the share
        assert np.mean([it.is_not_inferior for it in at_margin]) <= 0.065
        broken = simulated(spread, 2 * margin, margin, seeds)
        assert np.mean([it.verdict in ("worse", "undecided") for it in broken]) >= 0.95
        assert np.mean([it.is_not_inferior for it in broken]) <= 0.05


@pytest.mark.parametrize("spread", [0.005, *(pytest.param(each, marks=SLOW) for each in SPREADS)])
def test_a_drop_of_twice_the_margin_is_called_worse_where_equivalence_could_be_shown(spread: float) -> None:
    seeds = seeds_needed(spread * 2**0.5, 0.01, power=0.9)
    broken = simulated(spread, 0.02, 0.01, seeds, 400)
    assert np.mean([it.verdict == "worse" for it in broken]) >= 0.95


@pytest.mark.parametrize("seeds", [3, pytest.param(5, marks=SLOW)])
def test_the_same_is_hardly_ever_called_different(seeds: int) -> None:
    same = simulated(0.005, 0.0, 0.002, seeds)
    assert np.mean([it.verdict == "worse" for it in same]) <= 0.065
    assert np.mean([it.verdict == "better" for it in same]) <= 0.065


@pytest.mark.parametrize("ratio", [0.7, pytest.param(0.3, marks=SLOW), pytest.param(1.5, marks=SLOW)])
def test_the_number_of_seeds_that_is_needed_is_enough_and_half_of_it_is_not(ratio: float) -> None:
    margin = 0.01
    seeds, draw = seeds_needed(ratio * margin, margin), np.random.default_rng(0)

    def equivalent(count: int) -> float:
        techniques = 0.9 + draw.normal(0, ratio * margin, (1000, count))
        found = [compare_quality([0.9] * count, list(technique), margin, "max").verdict for technique in techniques]
        return float(np.mean([each == "equivalent" for each in found]))

    assert 0.76 <= equivalent(seeds) <= 0.97
    assert equivalent(seeds // 2) < 0.7


def test_how_many_seeds_are_needed_for_the_shipped_cnn() -> None:
    assert [seeds_needed(spread * 2**0.5, 0.01) for spread in SPREADS] == [2, 3, 7, 16]
    assert seeds_needed(0.0, 0.01) == 2


def test_pairing_takes_out_what_the_seeds_have_in_common() -> None:
    seeds = np.array([0.90, 0.93, 0.96, 0.99])
    technique = seeds - np.array([0.001, 0.002, 0.001, 0.002])
    assert compare_quality(list(seeds), list(technique), 0.005, "max").verdict == "equivalent"
    shuffled = list(seeds[::-1] - np.array([0.001, 0.002, 0.001, 0.002]))
    assert compare_quality(list(seeds), shuffled, 0.005, "max").verdict == "undecided"


def test_the_interval_is_the_t_interval_of_ninety_percent() -> None:
    found = compare_quality([0.1, 0.2, 0.3], [0.2, 0.1, 0.6], 0.5, "max")
    assert found.difference == pytest.approx(
        (0.1, 0.1 - 2.91999 * 0.2 / 3**0.5, 0.1 + 2.91999 * 0.2 / 3**0.5), rel=1e-4
    )
    assert (found.verdict, found.is_not_inferior, found.margin, found.seeds) == ("equivalent", True, 0.5, 3)


def test_which_way_is_good_is_told() -> None:
    low, high = [0.50, 0.51, 0.49, 0.50], [0.60, 0.61, 0.59, 0.605]
    assert compare_quality(low, high, 0.01, "max").verdict == "better"
    assert compare_quality(low, high, 0.01, "min").verdict == "worse"
    assert compare_quality(high, low, 0.01, "max").verdict == "worse"
    assert compare_quality(low, high, 0.01, "max").is_not_inferior
    assert not compare_quality(low, high, 0.01, "min").is_not_inferior
    assert compare_quality(low, high, 0.01, "min").difference.estimate == pytest.approx(0.10125)


def test_a_claim_may_have_a_smaller_error_than_the_test_of_equivalence() -> None:
    before, after = [0.90, 0.91, 0.92], [0.88, 0.885, 0.89]
    assert compare_quality(before, after, 0.01, "max").verdict == "worse"
    assert compare_quality(before, after, 0.01, "max", claim_error=0.005).verdict == "undecided"


def test_what_is_undecided_says_how_many_seeds_would_decide() -> None:
    found = compare_quality([0.90, 0.91, 0.92], [0.908, 0.902, 0.926], 0.01, "max")
    assert found.verdict == "undecided"
    differences = [0.008, -0.008, 0.006]
    room = 0.01 - float(np.mean(differences))  # more seeds do not change that it is better
    assert found.seeds_needed == seeds_needed(float(np.std(differences, ddof=1)), room)
    drop = [0.889, 0.8995, 0.894, 0.8945, 0.893]
    close = compare_quality([0.9] * 5, drop, 0.01, "max", error=0.025, claim_error=0.005)
    assert close.verdict == "undecided"
    assert close.seeds_needed is not None
    assert close.seeds_needed > 5
    assert compare_quality([0.9, 0.9], [0.86, 0.91], 0.01, "max").seeds_needed is None
    assert compare_quality([0.9], [0.9], 0.01, "max").seeds_needed is None


def test_no_spread_leaves_a_width_and_a_small_certain_drop_is_equivalent() -> None:
    technique = compare_quality([0.9, 0.91, 0.92, 0.93], [0.899, 0.9091, 0.919, 0.9289], 0.005, "max")
    assert (technique.difference.high < 0, technique.verdict) == (True, "equivalent")
    same = compare_quality([0.75, 0.5], [0.75, 0.5], 0.01, "max")
    assert (same.verdict, same.difference.estimate) == ("equivalent", 0)
    assert same.difference.low < 0 < same.difference.high
    assert compare_quality([0.75, 0.5], [0.5, 0.25], 0.01, "max").verdict == "worse"


def test_one_seed_decides_nothing() -> None:
    one = compare_quality([0.9], [0.5], 0.01, "max")
    assert (one.verdict, one.is_not_inferior) == ("undecided", False)
    assert one.difference == pytest.approx((-0.4, -inf, inf))


def test_an_technique_that_diverged_is_worse() -> None:
    for value in (float("nan"), inf):
        technique = compare_quality([1.0, 1.1], [1.0, value], 5.0, "min")
        assert (technique.verdict, technique.is_not_inferior) == ("worse", False)


@pytest.mark.parametrize(
    ("baseline", "technique", "margin"),
    [([1.0], [1.0, 2.0], 0.1), ([], [], 0.1), ([1.0], [1.0], 0.0), ([float("nan"), 1.0], [1.0, 1.0], 0.1)],
)
def test_what_cannot_be_compared_is_refused(baseline: list[float], technique: list[float], margin: float) -> None:
    with pytest.raises(ValueError, match=r"margin|compare|finite"):
        compare_quality(baseline, technique, margin, "max")
    with pytest.raises(ValueError, match="needs"):
        seeds_needed(0.1, 0.0)
