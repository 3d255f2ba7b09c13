"""The process that predicts: torch is imported once for all points of a plan."""

from dataclasses import asdict
from functools import partial
from typing import Any

from paceline.cluster.separate_process import SeparateProcess, answer, at_most
from paceline.config.experiment import ExperimentConfig
from paceline.errors import PacelineError
from paceline.garbage_collection import collector_paused

TIMEOUT_SECONDS = 1800.0
BEFORE_HOPPER = 8_519_680
HOPPER = 32 * 2**20
"""Bytes of cuBLAS's workspace: 2 x 4 MiB and 8 x 16 KiB, and what torch gives it on devices of compute capability 9."""


def ask(
    config: ExperimentConfig,
    points: list[dict[str, Any]],
    on_cuda: bool,
    facts: bool = True,
    timeout_seconds: float = TIMEOUT_SECONDS,
    piece_seconds: float | None = None,
) -> dict[str, Any]:
    """Predict in a separate process: `facts` of the config, `device_memory_bytes`, `warnings`, and for each point
    `memory` and `notes`, or None where the point does not suit the model.

    Args:
        points: overrides of the config, each of which makes a valid one.
        on_cuda: whether the memory is a GPU's.
        facts: whether those are asked for; the first point must then suit the model.
        timeout_seconds: after so long the process is ended.
        piece_seconds: likewise, for a piece of the work alone: the data, or one model with a step. None: for all of it.

    Raises:
        PacelineError: what the config, the data or the user's code raise.
        EnvironmentFault: the process died, or took too long.
        TookTooLong: a piece of the work did, with the place in the user's code.
    """
    options = [points, on_cuda, facts, piece_seconds]
    found: dict[str, Any] = SeparateProcess(__name__, config, options).answer(timeout_seconds)
    return found


def _predict(config: ExperimentConfig, options: Any) -> dict[str, Any]:
    with collector_paused():
        import torch

        from paceline._compat.torch import import_compiler
        from paceline.cluster.preflight import worker_threads
        from paceline.memory.predictor import Prediction, Predictor

    import_compiler()  # torch would in the first step, for seconds; the limit is for the user's code
    points, on_cuda, facts, piece_seconds = options
    torch.set_num_threads(worker_threads(config))
    predictor = Predictor(on_cuda, _workspace_bytes() if on_cuda else 0)
    if piece_seconds is not None:
        predictor.limited = partial(at_most, piece_seconds)
    configs = [config.with_overrides(point) if point else config for point in points]
    predicted = predictor.predict(configs)
    if facts and isinstance(predicted[0], PacelineError):
        raise predicted[0]
    return {
        "points": [asdict(each) if isinstance(each, Prediction) else None for each in predicted],
        "facts": predictor.facts(config) if facts else {},
        "warnings": predictor.warnings,
        "device_memory_bytes": _device_memory_bytes(config, on_cuda),
    }


def _workspace_bytes() -> int:
    import torch

    is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9
    return HOPPER if is_hopper else BEFORE_HOPPER


def _device_memory_bytes(config: ExperimentConfig, on_cuda: bool) -> int | None:
    """The memory that a rank has here: a GPU's, or its part of the machine's. None: there is no such device."""
    import psutil
    import torch

    from paceline.engine.free_memory import below_cgroup_limits

    if on_cuda:
        return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
    used = psutil.virtual_memory().used
    machine = min([psutil.virtual_memory().total, *(left + used for left in below_cgroup_limits())])
    return int(machine // max(config.scaling.num_workers, 1))


if __name__ == "__main__":
    answer(_predict)
