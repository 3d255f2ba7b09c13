"""A planted bottleneck is named, by a split of real steps on real ranks."""

from typing import Any

import pytest

from paceline.engine.ranks import Ranks
from paceline.study.step_split.diagnosis import Diagnosis, diagnose
from support.bottlenecks import PLANTS, Plant
from support.ranks import run_ranks

STEPS, WARM_UP = 15, 4


def found(ranks: Ranks, plant: Plant, times: int = 1, folder: Any = None) -> list[Diagnosis]:
    """One rank's diagnoses."""
    return [
        diagnose(plant.config(), lambda config: plant.build(config, ranks, folder), STEPS, WARM_UP)
        for _ in range(times)
    ]


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_bottleneck_is_named(kind: str) -> None:
    plant = PLANTS[kind]
    for (diagnosis,) in run_ranks(found, plant.ranks, plant, timeout=200):
        print(diagnosis.bottleneck, diagnosis.split.to_json())
        assert diagnosis.bottleneck.kind == kind
