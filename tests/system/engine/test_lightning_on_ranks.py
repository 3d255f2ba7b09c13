"""LightningTask on several ranks: metrics over all samples, each once."""

import pytest

from paceline.adapters import LightningTask
from paceline.engine.dist_context import DistContext
from support.ranks import run_ranks
from support.toys import Points, fit, toy_config


def evaluated(ranks: DistContext) -> tuple[dict[str, float], list[float]]:
    config = toy_config(
        task__path=LightningTask,
        model__path="support.lightning_modules:WithAccuracy",
        data__path=lambda: (Points(43), Points(17)),
        scaling__num_workers=ranks.world_size,
    )
    _, outcome, reporter = fit(config, ranks)
    metrics = {name: value for name, value in outcome.metrics.items() if name.startswith("val/")}
    return metrics, reporter.values("train/loss")


def test_padding_of_the_last_batches_does_not_count() -> None:
    """17 samples are batches of 8 and 1 on rank 0, and one of 8 and padding on rank 1."""
    pytest.importorskip("lightning")
    (alone, expected), (metrics, losses) = evaluated(DistContext.current()), run_ranks(evaluated, 2)[0]
    assert metrics == pytest.approx(alone, rel=1e-6)
    assert losses == pytest.approx(expected, rel=1e-12)
    assert alone["val/acc"] == pytest.approx(alone["val/mean"], rel=1e-6)
