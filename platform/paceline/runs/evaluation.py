"""`paceline evaluate` and `paceline predict`: find the run, then evaluate one of its checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from paceline.cluster.evaluation import Evaluated, EvaluationOptions, Predicted, TrainedRun, evaluate_run, predict_run
from paceline.errors import EnvironmentFault
from paceline.runs.finding import TRIALS, FoundRun, find_run
from paceline.runs.reopening import load_sweep, result_of
from paceline.runs.trust import require_trust


def evaluate(
    run: str | Path,
    sets: Sequence[str],
    options: EvaluationOptions,
    storage: str | Path | None = None,
    trust: bool = False,
) -> Evaluated:
    """Metrics of a run's checkpoint, see `RunResult.evaluate`.

    Args:
        run: see `find_run`; of a sweep, its best trial.
        storage: the folder that holds the runs, or its address; by default `runs` in the working folder.
        trust: call the code that the config names, even if the config is from outside of the working folder.

    Raises:
        PacelineError: see `RunResult.evaluate`; or there is no such run, or its config names code that was not said to
            be trusted.
    """
    return evaluate_run(_trained(run, storage, trust), sets, options)


def predict(
    run: str | Path,
    name: str,
    output: str | Path,
    options: EvaluationOptions,
    storage: str | Path | None = None,
    trust: bool = False,
) -> Predicted:
    """Write the predictions of a run's checkpoint for a set, see `evaluate` and `RunResult.predict`."""
    return predict_run(_trained(run, storage, trust), name, output, options)


def _trained(run: str | Path, storage: str | Path | None, trust: bool) -> TrainedRun:
    found = find_run(run, storage)
    if found.kind == "sweep":
        found = find_run(_best_trial(found))
    result = result_of(found)
    require_trust(result.config, found.folder, trust)
    return TrainedRun(str(found), result.config, result.folder, result.checkpoint)


def _best_trial(sweep: FoundRun) -> Path:
    result = load_sweep(sweep.folder)
    if result.best is None:
        metric = result.objectives[0][0]
        raise EnvironmentFault(f"the {sweep} has no best trial: none finished with {metric}", "no-trial", metric=metric)
    return sweep.folder / TRIALS / result.best.id
