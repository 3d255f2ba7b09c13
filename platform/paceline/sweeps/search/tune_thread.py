"""Ray Tune at work on a sweep, in a thread of the driver."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.progress_reporter import TrialProgressCallback

from paceline.errors import EnvironmentFault, first_line, text_of
from paceline.full_disk import causes, full_disk_error
from paceline.storage.store_faults import LeaseLost, StoreFault
from paceline.sweeps.launch import SlotPlan, SweepLaunch
from paceline.sweeps.search.schedulers import build_scheduler
from paceline.sweeps.search.trainable import STATE, TrialTrainable
from paceline.sweeps.search.trial_specs import TrialSpecBuilder
from paceline.sweeps.search.tune_trials import TRIAL, AxisPlaces, ListedTrials, id_of, tune_config
from paceline.sweeps.trial import PlannedTrial, Trial

ACTOR_FAILURES = 3
"""Failures after which Tune gives up its part of a trial; the trial itself continues meanwhile."""

FREE_SECONDS = 10.0
"""Time that a sweep which has just ended on this node may take to give back what its part of Tune held."""

_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the sweep has a journal of its own
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",  # nothing is restored from Tune's own files
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "86400",  # trials wait for a slot: that is how it works
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}

MOST_PENDING = "TUNE_MAX_PENDING_TRIALS_PG"

_LEVELS = {"ray.tune.tune": logging.WARNING, "ray.tune.analysis.experiment_analysis": logging.ERROR}
"""Levels of loggers that report where Tune's own files are, and which are missing: a sweep uses none of them."""


class TuneThread(threading.Thread):
    """`Tuner.fit()` in a thread, which keeps Tune from taking over the signals.

    Args:
        folder: for Tune's own files.
    """

    def __init__(
        self, launch: SweepLaunch, plan: SlotPlan, folder: Path, coordinator: Any, specs: TrialSpecBuilder
    ) -> None:
        super().__init__(name="ray-tune-fit", daemon=True)
        self.error: BaseException | None = None
        self._launch, self._plan, self._coordinator, self._specs = launch, plan, coordinator, specs
        self._planned_trials = launch.left
        self._is_population = launch.sweep.scheduler == "pbt"
        """True if Tune gets all trials at once: its population-based training refuses a searcher."""
        self._id = str(folder)

    def run(self) -> None:
        try:
            with _environment(self._plan.slots), _quiet():
                self._tuner().fit()
        except (Exception, SystemExit) as error:  # Ray raises SystemExit here when it is shut down
            self.error = error
        finally:
            _OVER.discard(self._id)

    def finish_early(self) -> None:
        """Start no more trials, and release those that are running."""
        if self.is_alive():
            _OVER.add(self._id)

    def leave(self, seconds: float) -> None:
        """End early, and wait for that, but no longer than this."""
        self.finish_early()
        self.join(seconds)

    def _tuner(self) -> tune.Tuner:
        sweep, plan = self._launch.sweep, self._plan
        trainable = tune.with_parameters(TrialTrainable, coordinator=self._coordinator, specs=self._specs)
        return tune.Tuner(
            tune.with_resources(trainable, _one_of(plan.slots)),
            param_space=self._grid(),
            tune_config=tune.TuneConfig(
                num_samples=1 if self._is_population else -1,
                search_alg=None if self._is_population else self._searcher(),
                scheduler=build_scheduler(self._launch.config, plan.first_rung, plan.length, self._launch.history),
                reuse_actors=True,
                trial_dirname_creator=_folder_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=self._id,
                verbose=0,
                stop=_UntilOver(self._id),
                callbacks=[_Prunings(self._coordinator, sweep.scheduler, sweep.budget_unit), _NoProgress()],
                failure_config=tune.FailureConfig(max_failures=ACTOR_FAILURES),
            ),
        )

    def _grid(self) -> dict[str, Any]:
        """The trials as Tune's grid; empty where a searcher hands them out."""
        if not self._is_population:
            return {}
        places = AxisPlaces(self._launch.sweep)
        return {TRIAL: tune.grid_search([tune_config(planned, places)[TRIAL] for planned in self._planned_trials])}

    def _searcher(self) -> Any:
        if self._planned_trials:
            return ListedTrials(self._planned_trials, self._launch.sweep)
        from paceline.sweeps.search.optuna_search import OptunaSearch

        launch, coordinator = self._launch, self._coordinator
        trials: Callable[[Sequence[str]], list[Trial]] = lambda ids: ray.get(coordinator.trials_of.remote(ids))  # noqa: E731
        known = list(launch.history.trials.values())
        skip: Callable[[PlannedTrial, str], None] = lambda *args: coordinator.skip.remote(*args)  # noqa: E731
        return OptunaSearch(launch.config, self._plan.slots, known, trials, skip, launch.earlier)


def _one_of(slots: int) -> tune.PlacementGroupFactory:
    """Resources on this node of which there is room for as many as slots, whatever else it has.

    Each node has one unit of a resource with its own name.
    """
    return tune.PlacementGroupFactory([{_here(): _share(slots)}])


def _here() -> str:
    return f"node:{ray.util.get_node_ip_address()}"


def _share(slots: int) -> float:
    return int(10_000 / slots) / 10_000


def require_this_node(slots: int) -> None:
    """Make sure that Tune's part of so many trials finds room on this node, where it would otherwise wait for ever.

    Raises:
        EnvironmentFault: another sweep's Tune has it.
    """
    end = time.monotonic() + FREE_SECONDS
    while ray.available_resources().get(_here(), 0.0) < _share(slots) * slots - 1e-6:
        if time.monotonic() > end:
            raise EnvironmentFault(
                "another sweep runs from this node of the Ray cluster: wait for its end, or start this one from "
                "another node",
                "node-in-use",
            )
        time.sleep(0.2)


def _folder_name(trial: Any) -> str:
    return f"trial-{id_of(trial.config)}"


_OVER: set[str] = set()
"""The sweeps of this process that are to end. Not in the stopper itself, which Tune copies and pickles."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what Tune logs about its own files, which is shown where the user's program has started Ray."""
    before = {name: logging.getLogger(name).level for name in _LEVELS}
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _environment(slots: int) -> Iterator[None]:
    """Tune's settings for the length of the body; those of `_ENVIRONMENT` that are set already stay as they are."""
    names = (*_ENVIRONMENT, MOST_PENDING)
    before = {name: os.environ.get(name) for name in names}
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[MOST_PENDING] = str(slots)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


class _UntilOver(tune.Stopper):  # type: ignore[misc]
    """Ends the experiment when `finish_early` was called."""

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._sweep in _OVER


class _NoProgress(TrialProgressCallback):  # type: ignore[misc]
    """Replaces the callback that Tune adds otherwise, which formats each result, prints none and keeps all trials."""

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        """Do nothing."""

    on_trial_error = on_trial_complete = on_trial_result


class _Prunings(tune.Callback):  # type: ignore[misc]
    """Tells the coordinator of trials that the scheduler has ended, and of those that Tune has lost. Runs in the
    driver."""

    def __init__(self, coordinator: Any, scheduler: str, unit: str) -> None:
        self._coordinator, self._scheduler, self._unit = coordinator, scheduler, unit

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        if last.get(STATE) == "running":
            reason = f"{self._scheduler} ended it at {last.get(self._unit, 0):,.6g} {self._unit}"
            self._coordinator.prune.remote(id_of(trial.config), reason)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        error = trial.get_pickled_error()
        disk_error = full_disk_error(error)
        if disk_error is not None:
            self._coordinator.found_disk_full.remote(
                id_of(trial.config), f"Ray Tune cannot write its files: {disk_error}"
            )
            return
        store_errors = [one for one in causes(error) if isinstance(one, StoreFault | LeaseLost)]
        if store_errors:  # the last one is that of the store itself, the others are Ray's
            self._coordinator.found_store_fault.remote(id_of(trial.config), text_of(store_errors[-1]))
            return
        why = f": {first_line(error)}" if error is not None else ""
        self._coordinator.give_up.remote(id_of(trial.config), f"Ray Tune gave up its part of the trial{why}")
