"""A `paceline train` in one process: driver, uploader or MLflow's server is killed or stopped."""

from pathlib import Path

import pytest

from support.chaos.chaos import Chaos
from support.chaos.configs import IN_PROCESS
from support.chaos.fixtures import Disturb, undisturbed
from support.chaos.oracle import Oracle

VICTIMS = ("driver", "uploader", "server")
DEFAULT_SEEDS = (9, 10, 11)
"""One of each victim."""
SEEDS = [*DEFAULT_SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 15, *range(100, 125)))]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Oracle:
    return undisturbed(tmp_path_factory.mktemp("whole"), prepared_database, IN_PROCESS, "train", forks=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_train_recovers(disturb: Disturb, oracle: Oracle, seed: int) -> None:
    disturb(Chaos.of_seed(seed, VICTIMS), oracle, IN_PROCESS, "train")
