"""Private API of Ray, with the public one that is missing. Imports nothing of Ray by itself."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline._compat.private_names import required

PRIVATE = (
    "ray._private.authentication.http_token_authentication",
    "ray._private.ray_constants.ENABLE_RAY_CLUSTER",
    "ray._private.ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV",
    "ray._private.ray_logging.global_worker_stdstream_dispatcher.add_handler",
    "ray._private.ray_logging.global_worker_stdstream_dispatcher.remove_handler",
    "ray._private.runtime_env.packaging",
    "ray._private.runtime_env.packaging._dir_travel",
    "ray._private.runtime_env.packaging._get_excludes",
    "ray._private.state.state.get_cluster_config",
    "ray._private.state.state.get_draining_nodes",
    "ray._private.worker.print_to_stdstream",
    "ray.autoscaler._private.kuberay.autoscaling_config._derive_autoscaling_config_from_ray_cr",
    "ray.autoscaler._private.kuberay.node_provider.KubernetesHttpApiClient",
    "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator.get_or_create_autoscaling_coordinator",
    "ray.init._temp_dir",
    "ray.job_config.JobConfig._runtime_env_has_working_dir",
    "ray.job_submission.JobSubmissionClient._do_request",
    "ray.train.torch.TorchTrainer._create_default_callbacks",
    "ray.train.v2._internal.callbacks.datasets.DatasetsCallback",
    "ray.train.v2._internal.callbacks.placement_group_callback.PlacementGroupCleanerCallback",
    "ray.train.v2._internal.execution.context.get_train_context",
    "ray.train.v2._internal.util",
    "ray.tune.execution.tune_controller.TrialRunnerWrapper._tune_controller",
    "ray.tune.execution.tune_controller.TuneController._actor_manager._pending_actors_to_attrs",
    "ray.tune.execution.tune_controller.TuneController._actor_manager._pending_actors_to_enqueued_actor_tasks",
    "ray.tune.execution.tune_controller.TuneController._stopped_trials",
    "ray.tune.execution.tune_controller.TuneController._trial_metadata",
    "ray.tune.execution.tune_controller.TuneController._trials_to_cache",
    "ray.tune.schedulers.AsyncHyperBandScheduler._brackets._rungs",
    "ray.tune.schedulers.AsyncHyperBandScheduler._metric",
    "ray.tune.schedulers.AsyncHyperBandScheduler._metric_op",
    "ray.tune.schedulers.AsyncHyperBandScheduler._time_attr",
    "ray.tune.schedulers.MedianStoppingRule._last_pause",
    "ray.tune.schedulers.MedianStoppingRule._results",
    "ray.tune.schedulers.MedianStoppingRule._stopped_trials",
    "ray.tune.schedulers.PopulationBasedTraining._checkpoint_or_exploit",
    "ray.tune.schedulers.PopulationBasedTraining._get_new_config",
    "ray.tune.schedulers.PopulationBasedTraining._perturbation_interval",
    "ray.tune.schedulers.PopulationBasedTraining._save_trial_state",
    "ray.tune.schedulers.PopulationBasedTraining._trial_state",
)
"""Every private name that this file uses: `tests/system/compat/test_ray.py` has a case for each."""

# Starting Ray and its workers


UV_HOOK = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
"""Variable that switches Ray's hook for `uv run`."""


def disable_uv_hook() -> None:
    """Switch Ray's hook for `uv run` off where Ray has been imported already: its environment variable comes too late.

    Without this name the hook stays on, and every worker resolves the environment again.
    """
    if "ray._private.ray_constants" in sys.modules:
        from ray._private import ray_constants

        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False


def job_without_folders() -> Any:
    """Make a job config with which workers do not get the driver's working folder first into their import path.

    Ray offers no option for it other than a `working_dir` that it would copy. Without this name, modules in the working
    folder shadow libraries in the workers.
    """
    from ray.job_config import JobConfig

    class JobWithoutFolders(JobConfig):  # type: ignore[misc]
        """Ray asks it when it would add folders."""

        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return JobWithoutFolders()


def init_private(folder: Path, **options: Any) -> None:
    """Start a private Ray for this process, which listens only on 127.0.0.1 and keeps its files in `folder`.

    `ray.init` takes the machine's address even where `_node_ip_address` names 127.0.0.1, unless this switch is off, as
    Ray has it on Windows and macOS. For the folder there is no public argument. Without these names, everybody who
    reaches the machine reaches this Ray.
    """
    import ray
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(address="local", _temp_dir=str(folder), **options)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def worker_output_to(
    handler: Callable[[Mapping[str, Any]], None], is_shown: Callable[[str], bool] = lambda text: True
) -> Iterator[None]:
    """While the body runs, Ray hands each batch of its workers' lines to `handler`, and prints none of them itself.

    The public `log_to_driver` is all or nothing. Without these names Ray's own output stays.

    Args:
        is_shown: returns True for a text of Ray's own about a node or a worker that Ray is to print.
    """
    try:
        from ray._private import worker
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

        show = worker.print_to_stdstream
    except (ImportError, AttributeError):
        yield
        return

    def show_some(data: Mapping[str, Any], *options: Any, **named: Any) -> None:
        if is_shown("\n".join(data["lines"])):
            show(data, *options, **named)

    worker.print_to_stdstream = show_some
    dispatcher.remove_handler(RAY_HANDLER)
    dispatcher.add_handler(_OUR_HANDLER, handler)
    try:
        yield
    finally:
        dispatcher.remove_handler(_OUR_HANDLER)
        worker.print_to_stdstream = show


RAY_HANDLER = "ray_print_logs"
"""Name under which Ray registers the handler that prints its workers' lines."""
_OUR_HANDLER = "paceline_worker_output"

# The cluster


def draining_nodes() -> set[str]:
    """Return the ids of the nodes that are about to leave, which `ray.nodes()` does not report. Empty if unknown."""
    with suppress(Exception):
        from ray._private.state import state

        return set(state.get_draining_nodes())
    return set()


def reported_cluster_config() -> Any | None:
    """The config that the cluster's manager reported to Ray, or None. No public call returns it."""
    with suppress(Exception):
        from ray._private.state import state

        return state.get_cluster_config()
    return None


def kuberay_autoscaling_config(cluster: str, namespace: str) -> dict[str, Any] | None:
    """Return KubeRay's autoscaling config in the format of `cluster.yaml`; None if the autoscaler is off.

    Reads the RayCluster with the autoscaler's client for Kubernetes and converts it with the autoscaler's function. A
    separate client would have to repeat its rules for resources.

    Raises:
        Exception: the RayCluster cannot be read, or this version of Ray has other names.
    """
    from ray.autoscaler._private.kuberay import autoscaling_config, node_provider

    entry = node_provider.KubernetesHttpApiClient(namespace=namespace).get(f"rayclusters/{cluster}")
    if not entry["spec"].get("enableInTreeAutoscaling"):
        return None
    config: dict[str, Any] = autoscaling_config._derive_autoscaling_config_from_ray_cr(entry)
    return config


def preemption_info() -> Any | None:
    """Ray Train's `PreemptionInfo` for this worker's group; None while all of its machines stay.

    The public `get_preemption_info` is a barrier over all workers, too slow for each step.
    """
    try:
        from ray.train.v2._internal.execution.context import get_train_context

        return get_train_context().preemption_context.preemption_info
    except (ImportError, AttributeError, RuntimeError):  # another version of Ray, or no worker of Ray Train
        return None


# Jobs


def walk_working_dir(
    folder: Path, excludes: Sequence[str], take: Callable[[Path], None], *, use_gitignore: bool, logger: logging.Logger
) -> None:
    """Call `take` with everything that Ray would send of a folder, by its own rules for ignored files.

    Ray has no public way to ask; another reading of `.gitignore` would promise what it does not send.

    Args:
        excludes: patterns in the syntax of `.gitignore`.
        logger: for Ray's own messages.

    Raises:
        EnvironmentFault: this version of Ray has other names.
    """
    left_out = required("ray._private.runtime_env.packaging._get_excludes")(folder, list(excludes))
    required("ray._private.runtime_env.packaging._dir_travel")(folder, [left_out], take, use_gitignore, logger)


CLIENT_LOGGERS = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
    "ray._private.authentication.http_token_authentication",
)
"""Loggers of Ray's job client, which reports each upload and a missing token."""


class RequestTimeout:
    """Put before `JobSubmissionClient` among the bases: each request ends after `timeout`.

    The client has no option for it, and waits forever for a broken tunnel.
    """

    timeout: tuple[float, float]
    """Seconds to connect, and until the answer begins."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        return super()._do_request(method, endpoint, timeout=self.timeout, **options)  # type: ignore[misc]

    def read(self, endpoint: str) -> Any:
        """Return the dashboard's JSON at an endpoint that the job client lacks; None if the status is not 200."""
        response = self._do_request("GET", endpoint)
        return response.json() if response.status_code == 200 else None


# Ray Train

DATASETS_CALLBACK = "ray.train.v2._internal.callbacks.datasets.DatasetsCallback"
"""Starts an actor that hands out shards of Ray Data sets."""
CLEANER_CALLBACK = "ray.train.v2._internal.callbacks.placement_group_callback.PlacementGroupCleanerCallback"
"""Starts an actor that frees the placement group of a controller that died."""


class CallbackFilter:
    """Mixin before `TorchTrainer` among the bases: leaves out some of Ray Train's callbacks.

    `RunConfig.callbacks` only adds some. Without this name all of them stay, and training starts later.
    """

    def unused_callbacks(self) -> set[str]:
        """Dotted paths of the classes to leave out."""
        return set()

    def _create_default_callbacks(self) -> list[Any]:
        unused = {path.rpartition(".")[2] for path in self.unused_callbacks()}
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in callbacks if type(callback).__name__ not in unused]


TRAINING_ERRORS = "ray.train.v2._internal.util"
"""Logger with which a worker of Ray Train prints the traceback of whatever ends its training function."""


def start_autoscaling_coordinator() -> None:
    """Start the actor that Ray Train's controller would start, and wait for, once it has come up itself.

    Nothing public starts it. Without this name it starts later.
    """
    with suppress(ImportError):
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )

        get_or_create_autoscaling_coordinator()


# Ray Tune


ENDED_TRIALS_KEPT = 64
"""Tune reads its trials from its files again if it has none left at its end."""


def forget_ended_trials(controller: Any) -> None:
    """Have Tune keep only the newest of the trials that have ended without an error.

    No option limits them, and Tune documents none of these names. Without them a sweep of thousands of trials takes
    hundreds of megabytes more.

    Args:
        controller: as Tune gives it to a scheduler.
    """
    with suppress(AttributeError):
        tune = controller._tune_controller
        if len(tune._stopped_trials) < 2 * ENDED_TRIALS_KEPT:
            return
        trials = tune.get_trials()
        forgotten = {trial for trial in trials[:-ENDED_TRIALS_KEPT] if trial in tune._stopped_trials}
        trials[:] = [trial for trial in trials if trial not in forgotten]
        tune._stopped_trials -= forgotten
        tune._trials_to_cache -= forgotten
        for trial in forgotten:
            tune._trial_metadata.pop(trial.trial_id, None)
        # what is left of actors that were never started, since another one was reused
        actors = tune._actor_manager
        for actor in set(actors._pending_actors_to_enqueued_actor_tasks) - set(actors._pending_actors_to_attrs):
            del actors._pending_actors_to_enqueued_actor_tasks[actor]


# Ray Tune's schedulers. What they have seen is under private names, and nothing public adds to it: their `save` and
# `restore` pickle everything, with Tune's trials of a process that is gone.


def add_asha_result(scheduler: Any, trial: Any, result: Mapping[str, Any]) -> None:
    """Have ASHA record a result, without a decision.

    Args:
        trial: has a `trial_id`.
    """
    value = scheduler._metric_op * result[scheduler._metric]
    scheduler._brackets[0].on_result(trial, result[scheduler._time_attr], value)


def rename_asha_trial(scheduler: Any, before: str, after: str) -> None:
    """Have ASHA keep a trial's results under another id."""
    for _, recorded in scheduler._brackets[0]._rungs:
        if before in recorded:
            recorded[after] = recorded.pop(before)


def median_results(scheduler: Any) -> dict[Any, list[dict[str, Any]]]:
    """The results that the median stopping rule compares, by trial."""
    results: dict[Any, list[dict[str, Any]]] = scheduler._results
    return results


def rename_median_trial(scheduler: Any, trial: Any, name: Any) -> None:
    """Have the median stopping rule keep the results of a trial that has ended, but not the trial.

    Args:
        name: to keep the results under.
    """
    results = median_results(scheduler)
    results[name] = results.pop(trial)
    scheduler._stopped_trials.discard(trial)
    scheduler._last_pause.pop(trial, None)


class PBTHooks:
    """Put before `PopulationBasedTraining` among the bases: hooks around its random draws and its new configs."""

    def around_exploit(self, exploit: Callable[[], None]) -> None:
        """Call `exploit`, once; it draws from Python's and numpy's global generators."""
        exploit()

    def change_config(
        self, trial: Any, source: Any, config: dict[str, Any], operations: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the config that `trial` continues with, and its changes by name.

        Args:
            source: the trial whose state it takes over.
            config: PBT's proposal.
            operations: what PBT changed, by name.
        """
        return config, operations

    def replay_results(self, trial: Any, results: Sequence[Mapping[str, Any]]) -> None:
        """Take in results of a trial from an earlier launch, in their order."""
        state = self._trial_state[trial]  # type: ignore[attr-defined]
        for result in results:
            time = result[self._time_attr]  # type: ignore[attr-defined]
            if time < state.last_train_time:  # it took over the state of one that was less far
                state.last_perturbation_time = state.last_train_time = time
            elif time - state.last_perturbation_time >= self._perturbation_interval:  # type: ignore[attr-defined]
                self._save_trial_state(state, time, result, trial)  # type: ignore[attr-defined]
                state.last_perturbation_time = time

    def _checkpoint_or_exploit(self, *arguments: Any) -> None:
        base: Any = super()
        self.around_exploit(lambda: base._checkpoint_or_exploit(*arguments))

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        config, operations = super()._get_new_config(trial, trial_to_clone)  # type: ignore[misc]
        return self.change_config(trial, trial_to_clone, config, operations)
