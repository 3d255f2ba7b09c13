"""The job that measures the throughput of some configs."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from paceline.bench.stepper import Stepper
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.trial_steps import release


def throughput(
    configs: Sequence[ExperimentConfig], options: Mapping[str, Any], ranks: DistContext
) -> Mapping[str, Any]:
    """Measure windows of training of each config, one trainer after the other.

    Args:
        options: `windows`, how many of each; `window_seconds`, how long one takes, at least one step.

    Returns:
        `seconds_per_sample`: of each window, a list for each config; `steps` of a window, and `build_seconds` until
        the trainer was ready for its first step, likewise.
    """
    found: dict[str, list[Any]] = {"seconds_per_sample": [], "steps": [], "build_seconds": []}
    for config in configs:
        release(ranks.device)  # of the trainers before
        with closing(Stepper(config, ranks)) as stepper:
            steps = max(1, round(options["window_seconds"] / stepper.calibrate()))
            stepper.catch_up()
            windows = [stepper.run(steps).seconds_per_sample for _ in range(options["windows"])]
            found["seconds_per_sample"].append(windows)
            found["steps"].append(steps)
            found["build_seconds"].append(stepper.build_seconds)
    return found
