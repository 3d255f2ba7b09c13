"""A `paceline train` with two workers on Ray: any of its processes is killed or stopped."""

from pathlib import Path

import pytest

from support.chaos.chaos import Chaos
from support.chaos.configs import ON_RAY
from support.chaos.fixtures import Disturb, undisturbed
from support.chaos.oracle import Oracle

pytestmark = [pytest.mark.ray, pytest.mark.slow]

VICTIMS = ("driver", "worker", "coordinator", "controller", "raylet", "gcs", "server")
"""The coordinator sends to MLflow itself: there is no uploader process."""
SEEDS = [9, *range(200, 225)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Oracle:
    return undisturbed(tmp_path_factory.mktemp("whole"), prepared_database, ON_RAY, "train", forks=False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_train_recovers(disturb: Disturb, oracle: Oracle, seed: int) -> None:
    disturb(Chaos.of_seed(seed, VICTIMS), oracle, ON_RAY, "train")
