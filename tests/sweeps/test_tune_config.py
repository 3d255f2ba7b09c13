"""Points in Tune's config: found again exactly, and without the values of lists."""

import json
from typing import Any

import pytest

from paceline.config.loading import validate
from paceline.config.sweep import SweepConfig
from paceline.sweeps.search.tune_config import point_of, tune_config
from paceline.sweeps.trials import Point

SECRET = "s3://me:S3cr3tWord@host/data"


def section(**axes: Any) -> SweepConfig:
    sweep = {"space": {name.replace("__", "."): axis for name, axis in axes.items()}, "metric": "val/loss"}
    data = {"name": "synthetic", "global_batch_size": 8}
    config = validate({"name": "n", "model": {"path": "json:loads"}, "data": data, "sweep": sweep})
    assert config.sweep is not None
    return config.sweep


def test_listed_values_stay_out_of_it() -> None:
    sweep = section(model__args__s=["s3://me@host/data", SECRET], optimizer__lr=[0.1, 0.2])
    point = Point("0007", {"model.args.s": SECRET, "optimizer.lr": 0.1, "seed": 4})
    made = tune_config(point, sweep)
    assert made == {"trial": {"id": "0007", "values": {"model.args.s": 1, "optimizer.lr": 0, "seed": 4}}}
    assert "S3cr3tWord" not in json.dumps(made)
    assert point_of(made, sweep) == point


@pytest.mark.parametrize("value", [1, True, "1", [1], {"b": 1, "a": [True]}, None])
def test_values_that_are_alike_are_kept_apart(value: Any) -> None:
    sweep = section(model__args__x=[True, 1, "1", None, [1], {"a": [1], "b": 1}, {"a": [True], "b": 1}])
    found = point_of(tune_config(Point("0000", {"model.args.x": value}), sweep), sweep).overrides["model.args.x"]
    assert found == value
    assert type(found) is type(value)
    assert json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)
