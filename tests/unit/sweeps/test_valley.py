"""`search: scale`: settings around the learning rate that the rule expects for each batch size."""

from math import log, sqrt
from typing import Any

import pytest

from paceline.sweeps.planning.planned_trials import plan_trials
from paceline.sweeps.planning.valley import WIDTH
from support.sweeps.configs import sweep_config

SIZES = [32, 64, 128]
SPACE: dict[str, Any] = {"data.global_batch_size": SIZES, "optimizer.lr": {"loguniform": [1e-6, 1e3]}}


def settings(optimizer: dict[str, Any], samples: int = 30, **space: Any) -> list[dict[str, Any]]:
    base = {"data": {"name": "mnist5k", "global_batch_size": 32}, "optimizer": {"lr": 0.02, **optimizer}}
    section = {"search": "scale", "num_samples": samples, "seeds": 1}
    planned = plan_trials(sweep_config({**SPACE, **space}, base, **section)).planned_trials
    return [planned_trial.params for planned_trial in planned]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ({"name": "sgd"}, lambda ratio: 0.02 * ratio),
        ({"name": "adamw"}, lambda ratio: 0.02 * sqrt(ratio)),
        ({"name": "sgd", "lr_scaling": "linear", "base_batch_size": 32}, lambda ratio: 0.02),
    ],
    ids=["sgd", "adamw", "scaled by the optimizer"],
)
def test_learning_rates_lie_on_both_sides_of_the_rule(optimizer: dict[str, Any], expected: Any) -> None:
    found = settings(optimizer)
    for size in SIZES:
        rates = [each["optimizer.lr"] for each in found if each["data.global_batch_size"] == size]
        assert len(rates) == 10
        offsets = [log(rate / expected(size / 32)) / log(WIDTH) for rate in rates]
        assert offsets[0] == pytest.approx(0.0, abs=1e-9)
        assert max(map(abs, offsets)) <= 1
        # evenly: none of ten equal parts but a few is without one
        assert len({int(5 * (offset + 1)) for offset in offsets}) >= 7


def test_more_of_them_begin_with_the_same_and_keep_the_range() -> None:
    few, many = (settings({"name": "sgd"}, number, **{"trainer.epochs": [1, 2]}) for number in (5, 40))
    assert many[:5] == few
    assert {each["trainer.epochs"] for each in many} == {1, 2}
    narrow = settings({"name": "sgd"}, **{"optimizer.lr": {"loguniform": [0.03, 0.05]}})
    assert all(0.03 <= each["optimizer.lr"] <= 0.05 for each in narrow)
