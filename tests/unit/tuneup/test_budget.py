"""Where the next pair is measured: everyone gets a start, then the time goes where it decides something."""

from math import exp

import numpy as np
import pytest

from paceline.tuneups.statistics.budget import next_technique
from paceline.tuneups.statistics.judge import Judge


def judge(speedup: float, spread: float, pairs: int, **rules: int) -> Judge:
    """One with so many pairs, which scatter evenly about a speedup."""
    judge = Judge(**rules)
    for at in range(pairs):
        judge.add(speedup * exp(spread * (1 if at % 2 else -1)), 1.0)
    return judge


def test_all_get_their_first_pairs_in_turn() -> None:
    judges = {name: Judge() for name in "abc"}
    for _ in range(15):
        judges[next_technique(judges, dict.fromkeys("abc", 1.0), 100.0) or ""].add(1.0, 1.0)
        assert max(map(len, judges.values())) - min(map(len, judges.values())) <= 1
    assert [len(each) for each in judges.values()] == [5, 5, 5]


def test_a_gain_goes_before_harm_and_the_cheap_before_the_dear() -> None:
    judges = {"faster": judge(1.1, 0.1, 6), "slower": judge(0.7, 0.1, 6), "same": judge(1.0, 0.01, 6)}
    assert next_technique(judges, dict.fromkeys(judges, 1.0), 100.0) == "faster"
    twins = {"dear": judge(1.1, 0.1, 6), "cheap": judge(1.1, 0.1, 6)}
    assert next_technique(twins, {"dear": 10.0, "cheap": 1.0}, 100.0) == "cheap"
    hopeless = {"far": judge(0.9, 0.08, 6), "near": judge(0.5, 0.05, 6)}
    assert next_technique(hopeless, dict.fromkeys(hopeless, 1.0), 100.0) == "near"


def test_equals_are_drawn_from_and_the_same_call_answers_the_same() -> None:
    judges = {name: Judge() for name in "abcd"}
    seconds = dict.fromkeys("abcd", 1.0)
    drawn = {next_technique(judges, seconds, 100.0, seed) for seed in range(60)}
    assert drawn == set("abcd")
    assert len({next_technique(judges, seconds, 100.0, 7) for _ in range(10)}) == 1


def test_none_is_left_when_all_are_decided_or_no_pair_fits() -> None:
    decided, open_one = judge(1.5, 0.001, 8), judge(1.1, 0.1, 6)
    assert decided.verdict == "gain"
    assert next_technique({"decided": decided}, {"decided": 1.0}, 100.0) is None
    both = {"decided": decided, "open": open_one}
    assert next_technique(both, {"decided": 1.0, "open": 5.0}, 5.0) == "open"
    assert next_technique(both, {"decided": 1.0, "open": 5.0}, 4.9) is None
    assert next_technique({}, {}, 100.0) is None


def spent(draw: np.random.Generator, speedups: list[float], budget: int, fairly: bool) -> list[str]:
    """The verdicts of techniques that share a budget of pairs."""
    judges = {str(at): Judge() for at in range(len(speedups))}
    seconds = dict.fromkeys(judges, 1.0)
    for left in range(budget, 0, -1):
        open_ones = [name for name, each in judges.items() if each.verdict is None]
        name = (
            open_ones[left % len(open_ones)] if fairly and open_ones else next_technique(judges, seconds, float(left))
        )
        if name is None:
            break
        judges[name].add(speedups[int(name)] * exp(draw.normal(0, 0.06)), 1.0)
    return [each.decide() for each in judges.values()]


def test_the_same_budget_finds_more_gains_than_when_it_is_shared_out_evenly() -> None:
    speedups = [1.08, 1.06, 1.0, 0.9, 0.8, 1.0]
    found = {}
    for fairly in (False, True):
        draw = np.random.default_rng(0)
        verdicts = [spent(draw, speedups, 40, fairly) for _ in range(50)]
        found[fairly] = sum(each[:2].count("gain") for each in verdicts) / 100
    assert found[False] > found[True] + 0.15


def test_spending_by_what_was_seen_calls_no_more_techniques_different() -> None:
    """The end of the budget then depends a little on how the pairs came out."""
    draw = np.random.default_rng(0)
    verdicts = [each for _ in range(50) for each in spent(draw, [1.0] * 6, 100, fairly=False)]
    assert np.mean([each != "no gain" for each in verdicts]) <= 0.05
    assert verdicts.count("regression") == pytest.approx(verdicts.count("gain"), abs=8)
