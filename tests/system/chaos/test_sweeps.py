"""A `paceline sweep` of four trials on two slots: any of its processes is killed or stopped."""

from pathlib import Path

import pytest

from support.chaos.chaos import Chaos
from support.chaos.configs import SWEEP
from support.chaos.fixtures import Disturb, undisturbed
from support.chaos.oracle import Oracle

pytestmark = [pytest.mark.ray, pytest.mark.slow]

VICTIMS = ("driver", "worker", "coordinator", "controller", "raylet", "gcs", "server", "uploader")
SEEDS = [16, *range(300, 320)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Oracle:
    return undisturbed(tmp_path_factory.mktemp("whole"), prepared_database, SWEEP, "sweep", forks=False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_sweep_recovers(disturb: Disturb, oracle: Oracle, seed: int) -> None:
    disturb(Chaos.of_seed(seed, VICTIMS), oracle, SWEEP, "sweep")
