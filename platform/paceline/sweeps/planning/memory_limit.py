"""Leaves out trials that are predicted not to fit into the memory of a worker's device."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.config.batch_sizes import OpenBatchSizes, batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault, PacelineError, text_of
from paceline.sweeps.planning.planned_trials import PlannedTrials, trial_config
from paceline.sweeps.trial import PlannedTrial, Trial

if TYPE_CHECKING:
    from paceline.sweeps.listener import SweepListener


@dataclass(frozen=True)
class FittingTrials:
    """The trials of a sweep, and what is known of their memory."""

    made: PlannedTrials
    """Without the trials that cannot fit, which are among those passed over, as `predicted_oom`."""
    predicted_bytes: Mapping[str, int]
    """Predictions for the trials that are left, by id."""


def fitting(
    config: ExperimentConfig, made: PlannedTrials, ended: Mapping[str, Trial], listener: "SweepListener"
) -> FittingTrials:
    """Leave out what cannot fit, where `sweep.device_memory_gib` says how much memory there is.

    A trial stays when the prediction is within its stated error of the memory, or cannot be made.

    Args:
        ended: the trials of an earlier launch that are over, by id.

    Raises:
        EnvironmentFault: no trial is left.
    """
    made = _as_before(made, ended)
    planned_trials = [planned for planned in made.planned_trials if planned.id not in ended]
    limit = _limit(config)
    if not planned_trials or limit is None:
        return FittingTrials(made, {})
    from paceline.memory.plan import cannot_fit

    listener.stage("predicting the memory of the trials")
    try:
        predicted = _predicted(config, planned_trials)
    except (PacelineError, pickle.PicklingError, AttributeError, TypeError) as error:
        reason = (text_of(error).splitlines() or [type(error).__name__])[0]
        message = f"the memory of the trials could not be predicted: {reason}"
        listener.event("warning", {"code": "memory-not-predicted", "message": message})
        return FittingTrials(made, {})
    too_large = {id: size for id, size in predicted.items() if cannot_fit(size, limit)}
    if len(too_large) == len(made.planned_trials):
        least = min(too_large.values())
        raise EnvironmentFault(_none_fits(least, limit), "no-trial-fits", least_bytes=least, limit_bytes=limit)
    left_out = [
        _left_out(planned, too_large[planned.id], limit) for planned in planned_trials if planned.id in too_large
    ]
    return FittingTrials(_without(made, left_out), {id: size for id, size in predicted.items() if id not in too_large})


def _as_before(made: PlannedTrials, ended: Mapping[str, Trial]) -> PlannedTrials:
    """Leave out what an earlier launch has left out, whatever this machine has."""
    return _without(made, [trial for trial in ended.values() if trial.state == "predicted_oom"])


def _without(made: PlannedTrials, left_out: Sequence[Trial]) -> PlannedTrials:
    ids = {trial.id for trial in left_out}
    kept = [planned for planned in made.planned_trials if planned.id not in ids]
    return PlannedTrials(kept, sorted([*made.skipped, *left_out], key=lambda trial: trial.id))


def _limit(config: ExperimentConfig) -> int | None:
    """Bytes that a worker's device has, as the config says. A GPU's own memory is not taken for it: predictions for
    CUDA have not been compared with a GPU yet, and must not take trials away unasked."""
    asked = config.sweep.device_memory_gib if config.sweep is not None else None
    return None if asked is None else round(asked * 2**30)


def _predicted(config: ExperimentConfig, planned_trials: Sequence[PlannedTrial]) -> dict[str, int]:
    """Bytes by id, of the trials for which they are known."""
    from paceline.memory.plan import PATIENCE_SECONDS, trains_on_cuda
    from paceline.memory.predicting import ask

    settings: dict[str, dict[str, Any]] = {}
    for planned in planned_trials:
        if _is_predictable(trial_config(config, planned.params)):
            settings.setdefault(repr(planned.setting), planned.setting)
    if not settings:
        return {}
    plain = config.model_copy(update={"sweep": None})
    found = ask(plain, list(settings.values()), trains_on_cuda(config), facts=False, piece_seconds=PATIENCE_SECONDS)
    by_setting = dict(zip(settings, found["points"], strict=True))
    return {
        planned.id: sum(each["memory"].values())
        for planned in planned_trials
        if (each := by_setting.get(repr(planned.setting))) is not None
    }


def _is_predictable(config: ExperimentConfig) -> bool:
    """Not with strategies for which there are but estimates, and with `max`, training finds out what fits."""
    return config.parallel.strategy == "ddp" and not isinstance(batch_sizes(config), OpenBatchSizes)


def _left_out(planned: PlannedTrial, size: int, limit: int) -> Trial:
    reason = f"a worker is predicted to take {_gib(size)}, its device has {_gib(limit)}"
    return Trial(planned.id, planned.params, state="predicted_oom", reason=reason)


def _none_fits(least: int, limit: int) -> str:
    return (
        f"no trial of the sweep fits into memory: the smallest is predicted to take {_gib(least)}, a worker's device "
        f"has {_gib(limit)}; lower data.micro_batch_size, or see `paceline plan` for what fits"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
