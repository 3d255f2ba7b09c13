"""Verdicts on duels: early where it is clear, never on chance that looking often would find."""

from math import exp

import numpy as np
import pytest

from paceline.tuneups.statistics.intervals import signed_rank_interval
from paceline.tuneups.statistics.judge import Judge, Noise, planned_looks


def judged(speedup: float, spread: float, seed: int = 0, noise: Noise | None = None) -> Judge:
    """A judge that was given pairs until it had a verdict."""
    judge, draw = Judge(noise), np.random.default_rng(seed)
    while judge.verdict is None:
        judge.add(speedup * exp(draw.normal(0, spread)), 1.0)
    return judge


@pytest.mark.parametrize(
    ("speedup", "verdict"), [(1.3, "gain"), (0.7, "regression"), (1.0, "no gain"), (1.005, "no gain")]
)
def test_what_is_clear_is_decided_by_the_first_look_that_can(speedup: float, verdict: str) -> None:
    judge = judged(speedup, 0.003)
    assert (judge.verdict, len(judge), judge.is_shown) == (verdict, 8, True)
    assert judge.interval.low <= speedup <= judge.interval.high


def test_there_is_a_verdict_by_the_last_pair() -> None:
    judge = judged(1.01, 0.5)
    assert (judge.verdict, len(judge), judge.is_shown) == ("no gain", 40, False)


def test_no_look_comes_before_the_least_number_of_pairs_and_a_verdict_stays() -> None:
    judge = Judge(min_pairs=20)
    for _ in range(19):
        judge.add(1.5, 1.0)
    assert judge.verdict is None
    judge.add(1.5, 1.0)
    assert judge.verdict == "gain"
    for _ in range(40):
        judge.add(0.5, 1.0)
    assert (judge.verdict, judge.decide()) == ("gain", "gain")


def test_the_end_of_the_budget_is_a_look_as_well() -> None:
    draw = np.random.default_rng(0)
    few, enough = Judge(), Judge()
    for count, judge in ((5, few), (12, enough)):
        for _ in range(count):
            judge.add(1.05 * exp(draw.normal(0, 0.02)), 1.0)
    assert (few.decide(), few.is_shown, few.verdict) == ("no gain", False, "no gain")
    assert (enough.decide(), enough.is_shown) == ("gain", True)
    assert Judge().decide() == "no gain"


def test_what_is_too_small_to_matter_is_none_even_if_it_is_real() -> None:
    judge = judged(1.01, 0.002)
    assert (judge.verdict, judge.is_shown) == ("no gain", True)
    assert judge.interval.low > 1.0


def test_looking_often_finds_nothing_where_there_is_nothing() -> None:
    draw = np.random.default_rng(0)
    called = at_every_look = 0
    for _ in range(300):
        logs = draw.standard_t(2, 40) * 0.05
        judge = Judge(least_effect=1e-6)  # else it spares many a false call
        for each in logs:
            judge.add(exp(each), 1.0)
        called += judge.verdict != "no gain"
        found = [signed_rank_interval(logs[:count], 0.05) for count in planned_looks(5, 40)]
        at_every_look += any(it.low > 0 or it.high < 0 for it in found)
    assert called <= 15
    assert at_every_look > 30


def test_what_equal_techniques_differ_by_is_no_difference() -> None:
    draw = np.random.default_rng(0)
    duel = [(1.04 * exp(draw.normal(0, 0.005)), 1.0) for _ in range(10)]
    noise = Noise.of(duel, [(1.0, 1.0)] * 10)
    assert noise.floor == pytest.approx(0.04, abs=0.01)
    assert judged(1.03, 0.005).verdict == "gain"
    assert judged(1.03, 0.005, noise=noise).verdict == "no gain"
    assert judged(1.10, 0.005, noise=noise).verdict == "gain"
    assert judged(0.90, 0.005, noise=noise).verdict == "regression"


def test_noise_alone_is_no_floor() -> None:
    draw = np.random.default_rng(0)
    noise = Noise.of([(exp(draw.normal(0, 0.1)), 1.0) for _ in range(200)])
    assert noise.floor == 0
    assert noise.spread == pytest.approx(0.1, rel=0.2)
    assert Noise.of([]) == Noise.of() == Noise()


@pytest.mark.parametrize(
    "wrong", [{"least_effect": 0}, {"alpha": 1}, {"min_pairs": 0}, {"min_pairs": 9, "max_pairs": 8}]
)
def test_senseless_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs"):
        Judge(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        Judge().add(0.0, 1.0)
