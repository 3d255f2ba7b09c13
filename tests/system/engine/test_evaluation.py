"""Evaluation on several ranks."""

import pytest

from paceline.engine.dist_context import DistContext
from support.engine.confusion import Confusion
from support.ranks import run_ranks
from support.toys import fit, points, toy_config

NAMES = ("val/f1", "val/accuracy", "val/loss")


def evaluated(ranks: DistContext, validation: int) -> dict[str, float]:
    """The metrics of the first weights."""
    config = toy_config(
        task__path=Confusion,
        data__path=lambda: points(32, validation),
        optimizer__lr=1e-300,
        trainer__epochs=1,
        scaling__num_workers=ranks.world_size,
    )
    metrics = fit(config, ranks)[1].metrics
    return {name: metrics[name] for name in NAMES}


def evaluated_each(ranks: DistContext) -> list[dict[str, float]]:
    return [evaluated(ranks, validation) for validation in (1, 31)]


def test_sums_of_any_shape_are_over_all_ranks_even_one_without_a_batch() -> None:
    alone = evaluated_each(DistContext.current())
    for found in run_ranks(evaluated_each, 2):
        for mine, expected in zip(found, alone, strict=True):
            assert mine == pytest.approx(expected, abs=1e-12)
