"""The exhaustive search over what saves memory, too: which combinations there are, those drawn, and what they say."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.study.tuneup.arms import Arm
from support.toys import toy_config

from .searches import BENCHMARKS, FASTER, SEARCH, SLOWER, SPOILS, arm, ignored, module, plain, played


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return


THRIFTY = Arm("thrifty", {"checkpoint.keep": 9, "trainer.log_every_n_steps": 7}, "memory", "why", saves_memory=True)
HALVES = Arm("halves", {"trainer.log_every_n_steps": 7}, "pieces", "why", saves_memory=True)


def test_with_what_saves_memory_there_are_those_that_differ_from_all_others() -> None:
    axes, seventh = module("axes"), arm("seventh", "logging", trainer__log_every_n_steps=7)
    arms = [FASTER, SLOWER, seventh, THRIFTY, HALVES]
    others = axes.product_of(plain(), arms).combinations
    found = axes.savers_of(plain(), arms, others)
    names = {each.name for each in found.combinations}
    # faster contradicts thrifty; halves alone is seventh, and beside thrifty it is thrifty
    assert names == {"thrifty", "slower + thrifty"}
    assert (found.contradictory, found.repeated) == (2 * 2 * 2, 4 * 2 + 2 * 3)
    assert len(found.combinations) + found.contradictory + found.repeated == found.with_savers - len(others)
    configs = [each.config.model_dump_json() for each in [*others, *found.combinations]]
    assert len(set(configs)) == len(configs)


def test_those_drawn_are_random_the_same_for_a_seed_and_the_first_of_more() -> None:
    def drawn(count: int, seed: int = 0) -> list[str]:
        arms = [FASTER, SLOWER, SPOILS, HALVES]
        product = module("axes").savers_of(plain(), arms, (), seed)
        return [each.name for each in module("savers").Drawn(product, None, count).combinations]

    assert len(drawn(8)) == 8
    assert drawn(3) == drawn(8)[:3]
    assert len({tuple(drawn(3, seed)) for seed in range(5)}) > 1


def drawn_in(file: Path, count: int) -> Any:
    product = module("axes").savers_of(plain(), [FASTER, SLOWER, SPOILS, HALVES], ())
    return module("savers").Drawn(product, module("journal").Journal(file, SEARCH), count)


def test_those_drawn_are_measured_in_their_order_and_only_they_count(tmp_path: Path) -> None:
    measuring, bench = module("measuring"), played()
    for done in range(1, 4):
        drawn = drawn_in(tmp_path / "savers", 3)
        assert measuring.scan(bench, plain(), drawn.combinations, drawn.journal, 0.0, ignored) == (done == 3)
        assert [each.name for each in drawn.scanned] == [each.name for each in drawn.combinations[:done]]
    assert bench.done["duel"] == 3
    assert len(drawn_in(tmp_path / "savers", 2).scanned) == 2


def test_what_is_compiled_is_built_beforehand_on_request(tmp_path: Path) -> None:
    measuring, combination, journal = module("measuring"), module("axes").Combination, module("journal").Journal
    both = [combination("b", toy_config(trainer__compile="default")), combination("a", toy_config())]
    assert [each.name for each in measuring.compiled_last(both)] == ["a", "b"]
    bench = played()
    bench._duel = Starting(bench._duel)
    for from_cache, name, seconds in ((False, "cold", 20.0), (True, "warm", 0.5)):
        journal_of = journal(tmp_path / name, SEARCH)
        assert measuring.scan(bench, plain(), both, journal_of, 60.0, ignored, from_cache=from_cache)
        found = {each.name: each for each in journal_of.scanned}
        assert found["b"].build_seconds == seconds
        assert found["a"].build_seconds == 0.5
        bench._duel.compiled.clear()


class Starting:
    """Duels in which a compiled config takes long to start for the first time."""

    def __init__(self, duel: Any) -> None:
        self._duel, self.compiled = duel, set[str]()

    def __call__(self, configs: list[dict[str, Any]], job: Any) -> dict[str, Any]:
        text, compiles = json.dumps(configs[1]), configs[1]["trainer"]["compile"] != "none"
        seconds = 20.0 if compiles and text not in self.compiled else 0.5
        self.compiled.add(text)
        return {**self._duel(configs, job), "build_seconds": seconds}


def scanned_ones(speedups: list[float]) -> list[Any]:
    return [
        module("journal").Scanned(f"d{number}", 0.001, 0.001 / each, 0.1, 2.0) for number, each in enumerate(speedups)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_time_of_all_is_estimated_from_those_drawn(seed: int) -> None:
    random = np.random.default_rng(seed)
    population = {f"d{number}": float(each) for number, each in enumerate(random.lognormal(1.5, 0.5, 2000))}
    drawn = scanned_ones([1.0] * 64)
    found = module("savers").estimated(drawn, population, len(population))
    low, high = found.all_seconds.low, found.all_seconds.high
    assert low < sum(population.values()) < high
    assert high - low < 0.5 * sum(population.values())
    assert found.all_seconds.value == pytest.approx(2000 * sum(population[each.name] for each in drawn) / 64)


def test_one_that_failed_counts_as_a_training_of_no_time() -> None:
    drawn = [*scanned_ones([1.0]), module("journal").Scanned("e", problem="no room")]
    found = module("savers").estimated(drawn, {"d0": 8.0}, 10)
    assert (found.drawn, found.failed, found.all_seconds.value) == (2, 1, 40.0)


def test_where_all_are_drawn_nothing_is_estimated(tmp_path: Path) -> None:
    savers, drawn = module("savers"), drawn_in(tmp_path / "savers", 8)
    for number, each in enumerate(drawn.combinations):
        drawn.journal.add(module("journal").Scanned(each.name, 0.001, 0.0005, number, 2.0))
    seconds = {each.name: each.build_seconds for each in drawn.scanned}
    whole = savers.Whole(module("figures").Times(2, 13.0, 20.0, 5, 3.0), savers.estimated(drawn.scanned, seconds, 8))
    assert whole.search == (48.0, 48.0, 48.0)
    text = "\n".join(savers.saver_lines(drawn, whole, 1.0))
    assert "all of these, measured:" in text
    assert "ESTIMATED" not in text


def test_the_tune_up_is_told_beside_the_whole_with_its_interval(tmp_path: Path) -> None:
    savers, figures = module("savers"), module("figures")
    drawn = drawn_in(tmp_path / "savers", 4)
    for each in drawn.combinations[:3]:
        drawn.journal.add(module("journal").Scanned(each.name, 0.001, 0.0005, 0.1, 2.0))
    interval = importlib.import_module("measuring").Interval
    estimate = savers.Estimate(3, 0, 8, interval(5.0, 4.0, 6.0))
    whole = savers.Whole(figures.Times(2, 13.0, 20.0, 5, 3.0), estimate)
    assert whole.search == (60.0, 52.0, 68.0)
    assert whole.ratio == pytest.approx((0.05, 3 / 68, 3 / 52))
    text = "\n".join(savers.saver_lines(drawn, whole, factor=2.0))
    assert "halves: 8 combinations more (0 contradict themselves, 0 come to the same config)" in text
    assert "ESTIMATED from 3 of these, drawn at random, ONLY 3 OF 4 SO FAR" in text
    assert "each of 8 trained once to the end: 40 s (32-48)" in text
    assert "all 10: 60 s (52-68)" in text
    assert "0.050 (0.044-0.058) of that; aimed at: at most 0.1: met" in text
    assert "with 5 seeds each, as the tune-up trains what it compares: 0.010 (0.009-0.012)" in text
    assert "what the check found: 0.025 (0.022-0.029)" in text
    for tuneup, verdict in ((9.0, ": not met"), (6.0, ": not decided")):
        other = savers.Whole(figures.Times(2, 13.0, 20.0, 5, tuneup), estimate)
        assert verdict in "\n".join(savers.saver_lines(drawn, other, 1.0))
    unknown = savers.Whole(figures.Times(2, 13.0, 20.0, 5, None), estimate)
    assert "aimed" not in "\n".join(savers.saver_lines(drawn, unknown, 1.0))


def test_the_fastest_drawn_is_told_beside_the_recommended_one() -> None:
    lines, recommended = module("savers").speed_lines, module("journal").Scanned("r", 0.001, 0.00025)
    text = "\n".join(lines(scanned_ones([1.0, 3.0, 2.0]), False, recommended))
    assert "  1  3.00 d1" in text
    assert "the recommended config in its own scan: 4.00, the fastest drawn has 0.75 of that" in text
    # of 3, none: 0.05 ** (1 / 3) is the chance of that where 63.2 % of all are faster
    assert "faster than it: 0 of 3 drawn, so that of all at most 63.2 % are (95 %)" in text
    assert "faster than it: 1 of 2 drawn" in "\n".join(lines(scanned_ones([1.0, 5.0]), False, recommended))
    assert "\n".join(lines(scanned_ones([1.0, 2.0]), True, recommended)).endswith("faster than it: 0 of 2 drawn")
    failed = module("journal").Scanned("f", problem="no room")
    assert lines([failed], False, recommended) == ["none of those drawn could be measured"]
    assert "FAILED f: no room" in "\n".join(lines([*scanned_ones([1.0]), failed], False, None))
