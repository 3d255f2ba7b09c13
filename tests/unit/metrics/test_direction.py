"""Which way a metric is better, by its name: one rule for sweeps, exports, notes and reports."""

import pytest

from paceline.direction import default_mode
from paceline.tracking import metrics


@pytest.mark.parametrize(
    "metric", [metrics.VAL_LOSS, "val/error", "val/Perplexity", metrics.STEP_SECONDS, metrics.ENERGY_JOULES]
)
def test_less_is_better(metric: str) -> None:
    assert default_mode(metric) == "min"


@pytest.mark.parametrize("metric", [metrics.VAL_ACCURACY, metrics.SAMPLES_PER_SECOND, "val/f1"])
def test_more_is_better(metric: str) -> None:
    assert default_mode(metric) == "max"
