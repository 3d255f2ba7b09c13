"""Worker, driver and MLflow's server killed at random moments, where training has a process of its own on Ray."""

import os
from pathlib import Path

import pytest

from paceline.tracking.mlflow_server import free_port
from support.tracking.killing import complaints, moments, play, read_mlflow, scene, undisturbed

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(2400)]

ON_RAY = ("scaling.num_workers=1", "scaling.use_gpu=false", "scaling.cpus_per_worker=0.5")
SCENES = {11: ("worker", "driver", "server", "worker"), 12: ("worker", "server", "worker", "worker", "server")}
"""By seed, what is killed."""


@pytest.mark.parametrize("seed", SCENES)
def test_whatever_dies_mlflow_has_each_point_once(tmp_path: Path, prepared_database: Path, seed: int) -> None:
    whole, points = undisturbed(tmp_path / "whole")
    port = free_port(25_900 + os.getpid() % 5_000)
    with scene(tmp_path, prepared_database, port, ON_RAY, forks=False) as (training, server, proxy):
        server.start()
        result = play(moments(seed, len(SCENES[seed]), SCENES[seed]), training, server, proxy)
        assert complaints(training.recorded(), read_mlflow(server.uri), points) == {}
        assert result["weights_sha256"] == whole["weights_sha256"]
