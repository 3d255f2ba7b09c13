"""Training, MLflow's server and what sends to it killed at random moments: MLflow ends with each point once.

Here the process that trains is the one that the command starts; with workers of its own: test_kills_on_ray.py.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_server import free_port
from support.tracking import killing
from support.tracking.killing import (
    DETERMINED,
    IN_PROCESS,
    STEPS,
    InMlflow,
    complaints,
    moments,
    play,
    read_mlflow,
    scene,
    undisturbed,
)

VICTIMS = ("driver", "server", "uploader")
SCENES = [(1, 3), *(pytest.param(seed, 5, marks=pytest.mark.slow) for seed in range(2, 7))]
"""Seed, and how often something is killed."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[MetricPoint]]:
    """The training that nothing happens to."""
    result, points = undisturbed(tmp_path_factory.mktemp("whole") / "run")
    assert sorted(point.step for point in points if point.key == metrics.TRAIN_LOSS) == list(range(1, STEPS + 1))
    assert {point.key for point in points} >= set(DETERMINED)
    return result, points


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "kills"), SCENES)
def test_whatever_dies_mlflow_has_each_point_once(
    tmp_path: Path, prepared_database: Path, whole: tuple[dict[str, Any], list[MetricPoint]], seed: int, kills: int
) -> None:
    port = free_port(25_300 + os.getpid() % 5_000)
    with scene(tmp_path, prepared_database, port, IN_PROCESS) as (training, server, proxy):
        server.start()  # it comes up while the training does: away at the start
        result = play(moments(seed, kills, VICTIMS), training, server, proxy)
        assert complaints(training.recorded(), read_mlflow(server.uri), whole[1]) == {}
        assert result["weights_sha256"] == whole[0]["weights_sha256"]


# Whether the comparison sees what it is there for


TAKEN = [
    MetricPoint(key, 1.0 / step, step, 1000 + step) for step in range(1, 6) for key in (metrics.TRAIN_LOSS, "speed")
]
GOOD = InMlflow(["Default", killing.NAME], ["FINISHED"], TAKEN)


LOST = [point for point in TAKEN if point.step != 3]


@pytest.mark.parametrize(
    ("journal", "change", "kinds"),
    [
        (TAKEN, {}, set()),
        (TAKEN, {"points": [*TAKEN, TAKEN[2]]}, {"twice in MLflow"}),
        (TAKEN, {"points": [*TAKEN, replace(TAKEN[2], timestamp_ms=9)]}, {"twice in MLflow", "strange"}),
        (TAKEN, {"points": TAKEN[:-1]}, {"lacking"}),
        (TAKEN, {"points": [replace(TAKEN[0], value=2.0), *TAKEN[1:]]}, {"lacking", "strange"}),
        (TAKEN, {"statuses": ["FINISHED", "RUNNING"]}, {"statuses"}),
        (TAKEN, {"experiments": ["Default", killing.NAME, "stray"]}, {"experiments"}),
        (LOST, {"points": LOST}, {"different"}),
        ([*TAKEN, replace(TAKEN[0], timestamp_ms=5)], {}, {"twice in the journal", "lacking"}),
    ],
)
def test_what_is_wrong_in_mlflow_or_the_journal_is_seen(
    journal: list[MetricPoint], change: dict[str, Any], kinds: set[str]
) -> None:
    assert complaints(journal, replace(GOOD, **change), TAKEN).keys() == kinds
