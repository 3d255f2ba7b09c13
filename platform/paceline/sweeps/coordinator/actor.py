"""The coordinator's actor on Ray, for as long as a launch of a sweep lasts."""

import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from paceline.errors import EnvironmentFault
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.results.record import sweep_record
from paceline.tracking.costs import goal_of

if TYPE_CHECKING:
    from paceline.sweeps.launch import SweepLaunch
    from paceline.sweeps.planning.slot_plan import SlotPlan

DISMISS_SECONDS = 2.0
CALLS = 1000
"""Calls that the coordinator takes in at the same time, beside those of each slot that wait at it."""
CALLS_OF_A_SLOT = 8


@contextmanager
def coordinator_of(launch: "SweepLaunch", plan: "SlotPlan") -> Iterator[Any]:
    """The coordinator's actor; afterwards nothing of this launch is left, whatever went wrong."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    most = CALLS + CALLS_OF_A_SLOT * plan.slots
    launch_id = f"launch-{time.time_ns()}"
    actor = ray.remote(SweepCoordinator).options(
        name=f"paceline-sweep {launch.folder.run_id} {launch_id}",
        num_cpus=0,
        scheduling_strategy=here,
        max_concurrency=most,
        # it takes over slots and trials from the sweep's log, and each call that it has not answered comes again
        max_restarts=-1,
        max_task_retries=-1,
    )
    total = launch.total + len(launch.skipped)
    rules, store = _rules(launch, plan.slots), launch.claimed.store
    coordinator = actor.remote(launch.folder.path, sweep_record(launch), rules, total, launch_id, store)
    try:
        ray.get(coordinator.prepare.remote(plan.shapes[: plan.slots] if launch.has_work else []))
        yield coordinator
    except ray.exceptions.RayActorError as error:
        if getattr(error, "actor_init_failed", False):
            message = f"the sweep cannot be recorded in {launch.folder.path}: {error}"
            raise EnvironmentFault(message, "record-not-writable", path=launch.folder.path) from None
        raise
    finally:
        _dismiss(coordinator)


def _rules(launch: "SweepLaunch", slots: int) -> SweepRules:
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


def kill_workers(handles: Sequence[bytes]) -> None:
    """End worker processes by their pickled handles, as the coordinator has them; those that are gone already are no
    error."""
    import ray

    for handle in handles:
        ray.kill(pickle.loads(handle))


def _dismiss(coordinator: Any) -> None:
    """End what is left of this launch, before another one may claim the sweep; Ray may stay up (a notebook's).

    The coordinator still knows the workers of each group that was not told to have ended.
    """
    import ray

    try:
        with suppress(ray.exceptions.RayError):
            kill_workers(ray.get(coordinator.workers.remote(), timeout=DISMISS_SECONDS))
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(coordinator)
