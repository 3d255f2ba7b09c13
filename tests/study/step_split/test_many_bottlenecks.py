"""Each planted bottleneck ten times over: the right one is named nine times at the least."""

from collections import Counter

import pytest

from paceline.engine.ranks import Ranks
from paceline.study.step_split.diagnosis import diagnose
from support.bottlenecks import PLANTS, Plant
from support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUNS = 10


def kinds(ranks: Ranks, plant: Plant) -> list[str]:
    """What this rank names in each run."""
    config = plant.config()
    return [diagnose(config, lambda config: plant.build(config, ranks), 15, 4).bottleneck.kind for _ in range(RUNS)]


@pytest.mark.parametrize("kind", PLANTS)
def test_the_right_one_is_named_nearly_always(kind: str) -> None:
    plant = PLANTS[kind]
    of_ranks = run_ranks(kinds, plant.ranks, plant, timeout=500)
    print(kind, Counter(of_ranks[0]))
    assert all(each == of_ranks[0] for each in of_ranks)
    assert of_ranks[0].count(kind) >= 0.9 * RUNS
