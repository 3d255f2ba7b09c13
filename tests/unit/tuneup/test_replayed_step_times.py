"""Verdicts on step times that were recorded on a shared machine, with planted techniques.

`step_times.json` was recorded on two cores on 2026-11-22; it says so itself, with versions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.tuneups.statistics.judge import Judge, Noise
from paceline.tuneups.statistics.windows import TURNS_PER_WINDOW, turns_needed
from support.tuneup.step_times import Condition

Array = npt.NDArray[np.float64]

EVERY = ("quiet", "one_neighbour", "two_neighbours", "two_neighbours_later", "quiet_later")
"""The later ones are of another hour, when the windows had been laid out by the first three."""
CONDITIONS: list[Any] = [
    ("one_neighbour", 250),
    *(pytest.param(name, 1000, marks=pytest.mark.slow) for name in EVERY),
]
"""Conditions, and how often each is replayed."""


def judge(pairs: Array, noise: Noise | None = None) -> Judge:
    """A judge that was given pairs until it had a verdict."""
    judge = Judge(noise)
    for baseline, technique in pairs:
        judge.add(baseline, technique)
        if judge.verdict:
            return judge
    judge.decide()
    return judge


@pytest.mark.parametrize(("speedup", "right"), [(1.0, "no gain"), (1.05, "gain"), (1 / 1.05, "regression")])
@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_planted_techniques_get_the_right_verdict(name: str, replays: int, speedup: float, right: str) -> None:
    condition, draw = Condition(name), np.random.default_rng(0)
    noise = [Noise.of(condition.pairs(draw, 12, TURNS_PER_WINDOW)) for _ in range(50)]
    judges = [
        judge(condition.pairs(draw, 40, TURNS_PER_WINDOW, speedup), noise[replay % len(noise)])
        for replay in range(replays)
    ]
    assert np.mean([each.verdict == right for each in judges]) >= 0.95
    if right != "no gain":
        assert np.median([len(each) for each in judges]) <= 20


@pytest.mark.parametrize("turns", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_windows_that_are_too_short_show_no_difference_either(name: str, replays: int, turns: int) -> None:
    condition, draw = Condition(name), np.random.default_rng(1)
    called = [judge(condition.pairs(draw, 40, turns)).verdict != "no gain" for _ in range(replays)]
    assert np.mean(called) <= 0.05


@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_windows_in_one_piece_do_not_show_what_turns_show(name: str, replays: int) -> None:
    condition, draw, replays = Condition(name), np.random.default_rng(5), min(replays, 300)
    verdicts = [
        judge(condition.pairs(draw, 40, TURNS_PER_WINDOW, 1.05, in_turns=False)).verdict for _ in range(replays)
    ]
    assert verdicts.count("gain") < 0.9 * replays
    assert verdicts.count("regression") <= 0.025 * replays


@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_two_builds_of_the_same_thing_are_equal(name: str, replays: int) -> None:
    """Pairs as they were recorded, so that what a build keeps for good is in it; and known from their own A/A duel."""
    draw, called = np.random.default_rng(2), list[bool]()
    for duel in Condition(name).duels:
        noise = Noise.of(duel.tolist())
        stretches = [draw.integers(len(duel)) + np.arange(40) for _ in range(replays // 2)]
        called += [judge(np.take(duel, each, axis=0, mode="wrap"), noise).verdict != "no gain" for each in stretches]
    assert np.mean(called) <= 0.05


@pytest.mark.parametrize(("name", "replays"), CONDITIONS)
def test_the_number_of_turns_follows_from_the_noise(name: str, replays: int) -> None:
    condition, draw, replays = Condition(name), np.random.default_rng(3), min(replays, 200)
    for series in list(condition.series):
        condition.series = [series]
        needed = turns_needed(Noise.of(condition.pairs(draw, 100, 16)).spread, turns=16)
        verdicts = [judge(condition.pairs(draw, 40, needed, 1.05)).verdict for _ in range(replays)]
        assert verdicts.count("gain") >= 0.9 * replays
        assert needed <= 2 * TURNS_PER_WINDOW


def test_an_effect_that_counts_as_decidable_is_decided() -> None:
    draw, spread = np.random.default_rng(4), 1.25 * np.log(1.05)
    assert [turns_needed(spread, turns=60), turns_needed(2 * spread, turns=60)] == [60, 240]
    assert turns_needed(0.0) == TURNS_PER_WINDOW
    verdicts = [judge(np.exp(draw.normal([np.log(1.05), 0], [spread, 0], (40, 2)))).verdict for _ in range(200)]
    assert verdicts.count("gain") >= 0.95 * len(verdicts)


@pytest.mark.parametrize("wrong", [{"spread": -1.0}, {"spread": 1.0, "effect": 0.0}, {"spread": 1.0, "turns": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs"):
        turns_needed(**wrong)  # type: ignore[arg-type]
