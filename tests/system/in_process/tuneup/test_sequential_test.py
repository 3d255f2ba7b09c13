"""Tests over builds: early where it is clear, never on what looking often, or at many techniques, would find."""

from collections.abc import Mapping, Sequence
from math import exp, inf, log

import numpy as np
import pytest

from paceline.tuneups.statistics.intervals import Interval
from paceline.tuneups.statistics.sequential_test import (
    LOOKS,
    NARROWING_SHARE,
    PRECISION,
    Comparison,
    SequentialTest,
    deviation_between,
)

ALPHA = 0.05


def build_until_decided(
    effects: Mapping[str, float], deviation: float, seed: int = 0, shared: float = 0.0, noisiest: float = 1.0
) -> dict[str, Comparison]:
    """Builds until nothing is open.

    Args:
        effects: speedups by name.
        deviation: standard deviation between builds.
        shared: of what a build does to all hypotheses alike, as a common baseline does.
        noisiest: by how many times the first one's deviation is larger.
    """
    test, draw = SequentialTest(list(effects), ALPHA), np.random.default_rng(seed)
    deviations = dict.fromkeys(effects, deviation) | {next(iter(effects)): noisiest * deviation}
    for build in range(1, LOOKS[-1] + 1):
        common = draw.normal(0, shared)
        ratios = {name: log(speed) + common + draw.normal(0, deviations[name]) for name, speed in effects.items()}
        test.add(ratios, draw.normal(0, deviation))
        if build in LOOKS:
            test.look(build)
        if not test.open:
            break
    return {name: test.comparison(name) for name in effects}


def looked_at(ratios: Sequence[float], alpha: float = ALPHA, looks: Sequence[int] = LOOKS) -> SequentialTest:
    """A test of one hypothesis after its builds, looked at once."""
    test = SequentialTest(["one"], alpha, looks)
    for ratio in ratios:
        test.add({"one": ratio})
    test.look(len(ratios))
    return test


@pytest.mark.parametrize(("speedup", "verdict"), [(1.3, "gain"), (1 / 1.3, "regression")])
def test_what_is_clear_is_decided_by_the_first_looks(speedup: float, verdict: str) -> None:
    found = build_until_decided({"one": speedup}, 0.005)["one"]
    assert (found.verdict, found.builds) == (verdict, 3)
    assert found.interval.low <= speedup <= found.interval.high
    assert found.builds_needed is None


def test_what_does_nothing_is_given_up_early() -> None:
    found = build_until_decided({"one": 1.0}, 0.005)["one"]
    assert (found.verdict, found.builds, found.is_given_up) == ("no gain", 2, True)


def test_what_differs_too_much_between_builds_is_measured_no_further_and_stays_undecided() -> None:
    test = looked_at([-0.3, 0.25, -0.2, 0.1])
    assert test.open == []
    found = test.comparison("one")
    assert (found.verdict, found.builds_needed, found.is_given_up) == ("no gain", None, False)


def test_what_is_too_small_to_count_is_no_gain_even_if_it_is_real() -> None:
    found = looked_at([0.01505, 0.0151, 0.01495, 0.0150]).comparison("one")
    assert (found.verdict, found.builds_needed) == ("no gain", None)


def test_the_interval_is_the_one_that_decided() -> None:
    """It excludes 1 exactly when the test rejected."""
    for seed in range(200):
        found = build_until_decided({"one": 1.03, "two": 1.0, "three": 1 / 1.04}, 0.02, seed)
        for each in found.values():
            excludes = each.interval.low > 1 or each.interval.high < 1
            assert excludes == (each.verdict != "no gain") or abs(log(each.interval.estimate)) < log(1.02)


def test_a_clear_hypothesis_is_measured_until_its_interval_is_narrow() -> None:
    """The intervals of all looks together miss the true value in at most 5 % of the cases."""
    wide, missed, tests = 0, 0, 300
    for seed in range(tests):
        test, draw = SequentialTest(["one"], ALPHA), np.random.default_rng(seed)
        for build in range(1, LOOKS[-1] + 1):
            test.add({"one": log(2) + draw.normal(0, 0.06)}, draw.normal(0, 0.06))
            if build in LOOKS:
                test.look(build)
            if not test.open and not test.imprecise:
                break
        found = test.comparison("one")
        assert found.verdict == "gain"
        wide += log(found.interval.high / found.interval.low) > 2 * PRECISION
        missed += not found.interval.low <= 2 <= found.interval.high
        assert found.builds > LOOKS[0] or log(found.interval.high / found.interval.low) <= 2 * PRECISION
    assert missed <= ALPHA * tests
    assert wide <= 0.02 * tests


def test_equal_builds_have_no_interval_without_width() -> None:
    low, high = looked_at([0.03] * 3).comparison("one").interval[1:]
    assert low < exp(0.03) < high


@pytest.mark.parametrize(
    ("techniques", "noise"),
    [(1, {}), (1, {"noisiest": 3.0}), (3, {"shared": 0.03}), (8, {})],
    ids=["one", "one-noisier", "three-shared", "eight"],
)
def test_the_chance_of_any_false_verdict_is_within_alpha(techniques: int, noise: dict[str, float]) -> None:
    names = dict.fromkeys(map(str, range(techniques)), 1.0)
    tests = 300
    found = [build_until_decided(names, 0.03, seed, **noise) for seed in range(tests)]
    wrong = sum(any(each.verdict != "no gain" for each in comparisons.values()) for comparisons in found)
    assert wrong <= ALPHA * tests + 2 * (ALPHA * tests) ** 0.5  # with two deviations of the count


def test_five_percent_are_found_beside_what_does_nothing() -> None:
    effects = {"faster": 1.05, "slower": 1 / 1.05, **dict.fromkeys("abcdef", 1.0)}
    found = [build_until_decided(effects, 0.014, seed) for seed in range(100)]
    assert sum(each["faster"].verdict == "gain" for each in found) >= 95
    assert sum(each["slower"].verdict == "regression" for each in found) >= 95


def test_a_rejected_hypothesis_leaves_its_part_to_the_others() -> None:
    """By Holm's procedure the second of two is tested with all of alpha once the first is rejected."""
    test = SequentialTest(["clear", "weak"], ALPHA, [4])
    for clear, weak in zip((0.30, 0.31, 0.29, 0.30), (0.02, 0.05, 0.03, 0.07), strict=True):
        test.add({"clear": clear, "weak": weak})
    test.look(4)
    assert test.comparison("weak").verdict == "gain"  # p = 0.029
    alone = SequentialTest(["weak", "other"], ALPHA, [4])
    for weak, other in zip((0.02, 0.05, 0.03, 0.07), (0.05, -0.05, 0.06, 0.1), strict=True):
        alone.add({"weak": weak, "other": other})
    alone.look(4)
    assert alone.comparison("weak").verdict == "no gain"


def test_what_is_not_decided_says_how_many_builds_would() -> None:
    found = looked_at([0.01, 0.05, 0.08, 0.02], 0.01, [4]).comparison("one")
    assert found.verdict == "no gain"
    assert found.builds_needed is not None
    assert 5 <= found.builds_needed <= 20


def test_a_build_after_the_last_look_does_not_move_what_it_saw() -> None:
    test = looked_at([0.02, 0.06, 0.10, 0.05])
    before = test.comparison("one")
    test.add({"one": 0.5})
    after = test.comparison("one")
    assert (after.verdict, after.interval, after.builds) == (before.verdict, before.interval, before.builds)


def test_one_without_new_builds_keeps_its_interval_and_counts_in_the_correction() -> None:
    def weak_after(looks: int, clear: float) -> Interval:
        test = SequentialTest(["clear", "weak"], ALPHA, [3, 4])
        for build in range(3):
            test.add({"clear": clear + 0.001 * build, "weak": 0.03 * (build - 1)})
        test.look(3)
        test.add({"clear": clear})
        if looks == 2:
            test.look(4)
        return test.comparison("weak").interval

    assert weak_after(2, 0.3) == weak_after(1, 0.3)
    assert weak_after(1, 0.3).high < weak_after(1, 0.0).high  # Holm gives it the part of the rejected one


def test_looks_that_only_narrow_leave_most_of_the_errors_to_the_others() -> None:
    """The errors of all looks add up to `alpha`, and a look that comes too late does not spend more."""
    first, narrowed = (0.25, 0.32, 0.39), (0.30, 0.34, 0.32)
    plain, further = (SequentialTest(["one"], ALPHA, [3], narrowing) for narrowing in ((), (4, 6)))
    for test in (plain, further):
        for ratio in first:
            test.add({"one": ratio})
        test.look(3)
    assert plain.comparison("one").interval.high < further.comparison("one").interval.high
    fewer = SequentialTest(["one"], ALPHA * (1 - NARROWING_SHARE), [3])
    for ratio in first:
        fewer.add({"one": ratio})
    fewer.look(3)
    assert fewer.comparison("one").interval == further.comparison("one").interval
    for ratio in narrowed:
        further.add({"one": ratio})
    further.look(6)
    whole = SequentialTest(["one"], ALPHA * NARROWING_SHARE, [6])
    for ratio in (*first, *narrowed):
        whole.add({"one": ratio})
    whole.look(6)
    assert further.comparison("one").interval.high == pytest.approx(whole.comparison("one").interval.high)


def test_one_build_decides_nothing() -> None:
    test = SequentialTest(["one"], ALPHA)
    test.add({"one": 3.0})
    test.look(3)  # the others have failed
    assert test.comparison("one").verdict == "no gain"
    assert test.comparison("one").interval[1:] == (0.0, inf)


def test_the_noise_is_the_deviation_from_equality() -> None:
    assert deviation_between([0.01, -0.01]) is None
    assert deviation_between([0.01, -0.01, 0.01, -0.01]) == pytest.approx(0.01)
    assert deviation_between([0.02] * 3) == pytest.approx(0.02)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": 1.0}, {"looks": []}, {"looks": [1, 2]}, {"looks": [4, 3]}])
def test_senseless_rules_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="needs"):
        SequentialTest(["one"], **{"alpha": ALPHA, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no look was planned"):
        SequentialTest(["one"], ALPHA).look(5)
