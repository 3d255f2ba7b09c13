"""Checks that a cluster is ready for the worker groups of a sweep."""

from typing import TYPE_CHECKING

from paceline.cluster.preflight import cluster_resources
from paceline.cluster.readiness import ready
from paceline.sweeps.planning.sizing import group_shape

if TYPE_CHECKING:
    from paceline.sweeps.launch import SweepLaunch


def ready_to_sweep(launch: "SweepLaunch") -> None:
    """Return once the cluster can run the worker groups of a sweep.

    Raises:
        EnvironmentFault: it cannot, or not within the sweep's `wait_seconds`.
    """
    available, section = cluster_resources(), launch.sweep
    trials = max(1, len(launch.left) or launch.total)
    slots = 1 if section.slots == "auto" else min(section.slots, trials)
    shapes = dict.fromkeys(group_shape(each, available) for each in launch.configs.of(launch.left))
    ready([each.request(slots) for each in shapes], launch.config, launch.wait_seconds, launch.listener)
