"""Which way a metric is better, by its name: one rule for sweeps, exports, notes and reports."""

from paceline.direction import default_mode
from paceline.tracking import metrics


def test_less_is_better_for_losses_errors_times_and_energy() -> None:
    less = (metrics.VAL_LOSS, "val/error", "val/Perplexity", metrics.STEP_SECONDS, metrics.ENERGY_JOULES)
    more = (metrics.VAL_ACCURACY, metrics.SAMPLES_PER_SECOND, "val/f1")
    assert {default_mode(metric) for metric in less} == {"min"}
    assert {default_mode(metric) for metric in more} == {"max"}
