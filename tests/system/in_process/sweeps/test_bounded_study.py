"""A study of Optuna's that keeps the best and the newest results alone."""

import random
from statistics import fmean, pstdev

import pytest
from optuna.distributions import FloatDistribution

from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.search import optuna_search
from paceline.sweeps.search.optuna_search import BoundedStudy

LOSS: Objective = ("val/loss", "min")


def study(*objectives: Objective, parallel: bool = False, seed: int = 0) -> BoundedStudy:
    return BoundedStudy(objectives or [LOSS], {"x": FloatDistribution(0.0, 1.0)}, seed, parallel)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_search, "MOST_RESULTS", 30)
    monkeypatch.setattr(optuna_search, "KEPT_RESULTS", 20)
    monkeypatch.setattr(optuna_search, "KEPT_BEST", 5)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("mode", ["min", "max"])
def test_best_and_newest_results_are_kept(mode: str) -> None:
    found, draw = study(("val/loss", mode)), random.Random(1)  # type: ignore[arg-type]
    values = draw.sample(range(1000), 200)
    for value in values:
        number, _ = found.ask()
        found.tell(number, [float(value)])
        assert len(found.values) <= 31
    best = sorted(values, reverse=mode == "max")[:5]
    kept = [values[0] for values in found.values]
    assert set(best) <= set(kept)
    assert kept[-15:] == values[-15:]


@pytest.mark.usefixtures("few")
def test_results_of_several_objectives_keep_their_front() -> None:
    found = study(LOSS, ("val/accuracy", "max"))
    points = [(float(n % 7), float(n % 5)) for n in range(40)]
    points[3] = (-1.0, 9.0)  # better than all others
    for point in points:
        number, _ = found.ask()
        found.tell(number, point)
    assert [-1.0, 9.0] in found.values
    assert len(found.values) <= 31


@pytest.mark.usefixtures("few")
def test_result_that_comes_after_others_were_dropped_is_that_of_its_own_proposal() -> None:
    found = study(parallel=True)
    waiting, params = found.ask()
    for value in range(31):
        number, _ = found.ask()
        found.tell(number, [float(value)])
    assert found.values.count(None) == 1
    found.tell(waiting, [-5.0])
    (told,) = [trial for trial in found._study.trials if trial.values == [-5.0]]
    assert (told.params, found.values.count(None)) == (params, 0)


@pytest.mark.usefixtures("few")
def test_search_still_finds_the_optimum_when_results_were_dropped() -> None:
    found = study()
    for _ in range(120):
        number, params = found.ask()
        found.tell(number, [(params["x"] - 0.3) ** 2])
    last = [found.ask()[1]["x"] for _ in range(1)]
    assert abs(last[0] - 0.3) < 0.1


def test_trials_side_by_side_are_kept_apart() -> None:
    spreads: dict[bool, list[float]] = {True: [], False: []}
    for parallel, own in spreads.items():
        for seed in range(5):
            found, draw = study(parallel=parallel, seed=seed), random.Random(seed)
            for _ in range(30):
                x = draw.random()
                found.tell(found.add({"x": x}), [(x - 0.3) ** 2])
            own.append(pstdev(found.ask()[1]["x"] for _ in range(16)))
    assert fmean(spreads[True]) > 1.3 * fmean(spreads[False])
