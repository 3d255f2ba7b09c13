"""The oracle sees what it is there for."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.tracking.metric_points import MetricPoint
from support.chaos.chaos import Chaos
from support.chaos.oracle import Evidence, Oracle

POINTS = [MetricPoint("train/loss", 1.0 / step, step, 1000 + step) for step in range(1, 6)]
GOOD = Evidence({"run": "a"}, [POINTS], [POINTS], ["FINISHED"])
CHANGED = [replace(POINTS[0], value=2.0), *POINTS[1:]]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, set()),
        ({"weights": {"run": "b"}}, {"weights"}),
        ({"mlflow": [POINTS, POINTS], "statuses": ["FINISHED", "FINISHED"]}, {"MLflow runs", "not as in the journals"}),
        ({"statuses": ["RUNNING"]}, {"statuses"}),
        ({"mlflow": [[*POINTS, POINTS[0]]]}, {"twice in MLflow"}),
        ({"mlflow": [POINTS[1:]]}, {"not as in the journals"}),
        ({"journals": [CHANGED], "mlflow": [CHANGED]}, {"metrics"}),
        ({"hidden": frozenset({".run.json.new"})}, {"temporary files"}),
        ({"rays_files": ("paceline-1",)}, {"Ray's files"}),
        ({"processes": ("1: raylet",)}, {"processes"}),
    ],
)
def test_each_kind_of_loss_is_seen(change: dict[str, Any], kinds: set[str]) -> None:
    assert Oracle(GOOD).complaints(replace(GOOD, **change)).keys() == kinds


def test_seeds_take_each_victim_and_both_acts() -> None:
    drawn = [Chaos.of_seed(seed, ("driver", "worker")) for seed in range(40)]
    assert drawn == [Chaos.of_seed(seed, ("driver", "worker")) for seed in range(40)]
    assert {(chaos.victim, chaos.stop_seconds > 0) for chaos in drawn} == {
        (victim, is_stopped) for victim in ("driver", "worker") for is_stopped in (False, True)
    }
