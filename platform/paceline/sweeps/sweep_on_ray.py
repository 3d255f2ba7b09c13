"""A sweep on Ray: starts the coordinator's actor, the worker groups and Tune, and ends what is left of them."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from paceline.cluster.preflight import cluster_resources
from paceline.cluster.private_ray import keep_logs
from paceline.cluster.ray_session import (
    is_private,
)
from paceline.cluster.run_folder import writable
from paceline.cluster.user_code import sent_modules
from paceline.cluster.worker_group import actor_on_this_node, dismiss, ray_for_workers
from paceline.errors import EnvironmentFault, RunFailed, first_line
from paceline.private_files import make_folder
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.launch import SlotPlan, SweepLaunch, ready_to_sweep
from paceline.sweeps.results.record import Closing, sweep_record
from paceline.sweeps.search.trial_specs import base_of, spec_builder_of
from paceline.sweeps.sweep_costs import SweepCosts, unit_of
from paceline.sweeps.sweep_driver import SweepDriver
from paceline.sweeps.worker_group_manager import WorkerGroupManager
from paceline.tracking.costs import Unit, goal_of

CALLS = 1000
"""Calls that the coordinator takes in at the same time, beside those of each slot that wait at it."""
CALLS_OF_A_SLOT = 8
ONE_ARENA = {"env_vars": {"MALLOC_ARENA_MAX": "1"}}
"""Environment of the coordinator, whose many threads write the records of the trials. By default glibc has eight arenas
for each core, and keeps in each what was freed there."""
_TUNES_FOLDER = "tune-"
"""Prefix of the folders that Tune writes to; each launch has one of its own."""


def run_on_ray(launch: SweepLaunch) -> Closing:
    """Run what is left of a sweep.

    Raises:
        KeyboardInterrupt: the user has ended it at once; it can be resumed.
    """
    modules = partial(sent_modules, launch.config, "sweep")
    with ray_for_workers(launch.address, modules, launch.listener, _import_ray_parts) as finish_imports:
        import ray

        if launch.has_work and not is_private():
            ready_to_sweep(launch)
        plan = SlotPlan(launch, cluster_resources())
        if not is_private():
            from paceline.sweeps.search.tune_thread import require_this_node

            require_this_node(plan.slots)
        with _coordinator_of(launch, plan, finish_imports) as coordinator:
            try:
                closing = _run(launch, plan, coordinator)
                if closing.fault or any(trial.state == "failed" for trial in closing.trials):
                    keep_logs()
                return closing
            except ray.exceptions.RayActorError as error:
                reason = f"the process that holds the sweep together has died: {first_line(error)}"
                raise RunFailed(f"{reason}; the same command resumes it") from None


@contextmanager
def _coordinator_of(launch: SweepLaunch, plan: SlotPlan, finish_imports: Callable[[], None]) -> Iterator[Any]:
    """The coordinator's actor; afterwards nothing of this launch is left, whatever went wrong.

    Args:
        finish_imports: is called while the actor starts.
    """
    import ray

    most = CALLS + CALLS_OF_A_SLOT * plan.slots
    launch_id = f"launch-{time.time_ns()}"
    actor = actor_on_this_node(
        SweepCoordinator,
        name=f"paceline-sweep {launch.folder.run_id} {launch_id}",
        max_concurrency=most,
        # it takes over slots and trials from the sweep's log, and each call that it has not answered comes again
        max_restarts=-1,
        max_task_retries=-1,
        runtime_env=ONE_ARENA,
    )
    total = launch.total + len(launch.skipped)
    rules, store = _rules(launch, plan.slots), launch.claimed.store
    coordinator = actor.remote(launch.folder.path, sweep_record(launch), rules, total, launch_id, store, True)
    try:
        prepared = coordinator.prepare.remote(plan.shapes[: plan.slots] if launch.has_work else [])
        launch.listener.stage(f"starting {plan.slots} worker group{'s' if plan.slots > 1 else ''}")
        finish_imports()
        ray.get(prepared)
        yield coordinator
    except ray.exceptions.RayActorError as error:
        if getattr(error, "actor_init_failed", False):
            message = f"the sweep cannot be recorded in {launch.folder.path}: {error}"
            raise EnvironmentFault(message, "record-not-writable", path=launch.folder.path) from None
        raise
    finally:
        # it has the workers of each group whose end was not reported
        dismiss(coordinator, coordinator.workers.remote)


def _rules(launch: SweepLaunch, slots: int) -> SweepRules:
    section = launch.sweep
    return SweepRules(
        objectives=tuple(section.objectives),
        slots=slots,
        max_failures=section.max_failures_per_trial,
        fresh_processes=section.isolation == "process",
        target=section.stop.target,
        trial_seconds=section.stop.trial_seconds,
        constraints=tuple(section.limits),
        goal=goal_of(launch.config),
    )


def _import_ray_parts() -> None:
    # takes seconds; done while Ray starts
    import paceline.cluster.torch_trainer
    import paceline.sweeps.search.tune_thread  # noqa: F401


def _run(launch: SweepLaunch, plan: SlotPlan, coordinator: Any) -> Closing:
    from paceline.sweeps.search.tune_thread import TuneThread

    base = base_of(launch)
    folder = _ray_folder(launch.folder.path)
    unit = unit_of(plan.shapes if launch.has_work else [], launch.folder.tracking)

    def warn(message: str) -> None:
        launch.listener.event("warning", {"code": "group-killed", "message": message})

    groups = WorkerGroupManager(coordinator, folder, base, warn, unit)
    costs = _costs(launch, coordinator, groups, unit)
    try:
        specs, tunes_folder = spec_builder_of(launch, plan, base), folder / f"{_TUNES_FOLDER}{time.time_ns()}"
        tune = TuneThread(launch, plan, tunes_folder, coordinator, specs)
        return SweepDriver(launch, coordinator, groups, tune, costs).run()
    finally:
        _forget_tunes_files(folder)


def _costs(launch: SweepLaunch, coordinator: Any, groups: WorkerGroupManager, unit: Unit) -> SweepCosts:
    import ray

    tracking = launch.config.tracking
    return SweepCosts(
        launch.folder.tracking,
        unit,
        tracking.price_per_hour,
        goal_of(launch.config),
        lambda: groups.allocated,
        lambda: ray.get(coordinator.spent.remote()),
        lambda: groups.have_whole_gpus,
    )


def _ray_folder(sweep: Path) -> Path:
    """Make the folder where Ray writes. Tune writes settings there with their secrets, so it is for its owner alone."""
    folder = sweep / "ray"
    with writable(sweep):
        make_folder(folder)
    _forget_tunes_files(folder)
    return folder


def _forget_tunes_files(folder: Path) -> None:
    """Remove what Tune has written, in this launch or in one that was killed: a sweep resumes from its own log."""
    for each in folder.glob(f"{_TUNES_FOLDER}*"):
        shutil.rmtree(each, ignore_errors=True)
