"""The job that trains a config to its end."""

from collections.abc import Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any

from paceline.cluster.initial_weights import weights_finder
from paceline.config.experiment import ExperimentConfig
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.trial_steps import release


def train(configs: Sequence[ExperimentConfig], options: Mapping[str, Any], ranks: DistContext) -> Mapping[str, Any]:
    """Train to the end, without checkpoints, unless the time is over before.

    Args:
        configs: one, with the seed to train with.
        options: `seconds`, after which it is to stop; without them, it trains to the end.

    Returns:
        `metrics` at the end; `validation`, the metrics of each evaluation as pairs of step and values; `samples`;
        `seconds` of the training steps alone; `wall_seconds`; `stopped`, whether the time was over before the end.
    """
    (config,) = configs
    release(ranks.device)  # of the jobs before
    reporter = Until(options.get("seconds", inf))
    begun = perf_counter()
    trainer = build_trainer(config, ranks, reporter, find_weights=weights_finder(config))
    outcome = trainer.fit()
    validation = [(step, values) for step, values in reporter.points if any(key.startswith("val/") for key in values)]
    return {
        "stopped": outcome.stopped,
        "metrics": outcome.metrics,
        "seconds": outcome.seconds.get("training", 0.0),
        "wall_seconds": perf_counter() - begun,
        "samples": outcome.samples,
        "validation": validation,
    }


class Until(MemoryReporter):
    """Asks to stop once the time is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = perf_counter() + seconds

    def stop_requested(self) -> bool:
        return perf_counter() >= self._end
