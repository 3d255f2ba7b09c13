"""`evaluate` and `predict`: find the run, then evaluate one of its checkpoints."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.evaluation import Evaluated, EvaluationOptions, Predicted, TrainedRun, evaluate_run, predict_run
from paceline.cluster.run_result import RunResult
from paceline.errors import EnvironmentFault
from paceline.runs.finding import FoundRun, find_run, trial_of
from paceline.runs.reopening import result_of, sweep_of
from paceline.runs.trust import require_trust

if TYPE_CHECKING:
    import torch


def evaluate(
    run: str | Path,
    sets: str | Sequence[str] = "validation",
    *,
    storage: str | Path | None = None,
    trust: bool = False,
    **options: Any,
) -> dict[str, float]:
    """Return metrics of a run's checkpoint.

    Args:
        run: see `find_run`; of a sweep, its best trial. Warns where a name has both runs and sweeps.
        sets: see `RunResult.evaluate`.
        storage: the folder that holds the runs, or its address; by default PACELINE_STORAGE, else `runs` in the working
            folder.
        trust: call the code that the config names, even if the config is from outside of the working folder.
        options: `checkpoint`, `overrides`, `address` and the like, see `RunResult.evaluate`.

    Raises:
        PacelineError: see `RunResult.evaluate`; or there is no such run, or its config names code that was not said to
            be trusted.
    """
    return _result(run, storage, trust).evaluate(sets, **options)


def predict(
    run: str | Path,
    set: str = "validation",
    *,
    storage: str | Path | None = None,
    trust: bool = False,
    **options: Any,
) -> "dict[str, torch.Tensor]":
    """Return the predictions of a run's checkpoint for a set, or write them to `output`.

    Args:
        run: see `find_run`; of a sweep, its best trial.
        set: see `RunResult.predict`.
        storage: see `evaluate`; likewise `trust`.
        options: `output`, `checkpoint`, `overrides` and the like, see `RunResult.predict`.

    Raises:
        PacelineError: see `evaluate`.
    """
    return _result(run, storage, trust).predict(set, **options)


def evaluate_found(
    run: str | Path, sets: Sequence[str], options: EvaluationOptions, storage: str | Path | None, trust: bool
) -> Evaluated:
    """Do the same as `evaluate`, and say what was evaluated where."""
    return evaluate_run(_trained(run, storage, trust, options), sets, options)


def predict_found(
    run: str | Path,
    name: str,
    output: str | Path,
    options: EvaluationOptions,
    storage: str | Path | None,
    trust: bool,
) -> Predicted:
    """Write the predictions to a file, and say what was predicted where."""
    return predict_run(_trained(run, storage, trust, options), name, output, options)


def _result(run: str | Path, storage: str | Path | None, trust: bool) -> RunResult:
    asked = find_run(run, storage)
    if asked.note:
        warnings.warn(asked.note, stacklevel=3)  # the line that called `evaluate` or `predict`
    return _trusted(asked, trust)[1]


def _trained(run: str | Path, storage: str | Path | None, trust: bool, options: EvaluationOptions) -> TrainedRun:
    asked = find_run(run, storage)
    if asked.note:
        options.listener.event("warning", {"code": "runs-and-sweeps", "message": asked.note})
    found, result = _trusted(asked, trust)
    return TrainedRun(str(found), result.config, result.folder, result.checkpoint)


def _trusted(found: FoundRun, trust: bool) -> tuple[FoundRun, RunResult]:
    """A run whose code may be called, of a sweep the best trial."""
    if found.kind == "sweep":
        found = _best_trial(found)
    result = result_of(found)
    require_trust(result.config, found.folder, trust)
    return found, result


def _best_trial(sweep: FoundRun) -> FoundRun:
    result = sweep_of(sweep)
    if result.best is None:
        metric = result.objectives[0][0]
        raise EnvironmentFault(
            f"the {sweep} has no best trial: {result.why_no_best}", "no-finished-trial", metric=metric
        )
    return trial_of(sweep, result.best.id)
