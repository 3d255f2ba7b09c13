"""The best setting while a sweep continues: the same as that of a ranking of all trials."""

import random
from typing import Any

import pytest

from paceline.sweeps.results import ranking
from paceline.sweeps.results.ranking import BestSetting, Objective, SettingSummary
from paceline.sweeps.trial import Trial


def means(summary: SettingSummary | None) -> dict[str, float]:
    """What the sweep's own record gets."""
    return {} if summary is None else {name: spread.mean for name, spread in summary.spreads.items() if spread.n}


@pytest.mark.parametrize("objectives", [[("loss", "min")], [("accuracy", "max"), ("loss", "min")]])
@pytest.mark.parametrize("seed", range(5))
def test_best_is_that_of_the_ranking_at_each_moment(seed: int, objectives: list[Objective]) -> None:
    draw, best, trials = random.Random(seed), BestSetting(objectives), []
    for number in range(120):
        state: Any = draw.choice(["finished", "finished", "pruned", "failed"])
        values = {"loss": draw.choice([0.5, 1.0, 2.0, float("nan")]), "accuracy": draw.choice([0.1, 0.2])}
        params = {"lr": draw.randrange(12), "seed": draw.randrange(3)}
        violations = {"memory <= 1": draw.choice([-1.0, 1.0])}
        trials.append(Trial(f"{number:04d}", params, state, metrics=values, violations=violations))
        best.add(trials[-1])
        expected, found = ranking.best_setting(trials, objectives), best.summary()
        assert means(found) == means(expected)
    assert means(found)
