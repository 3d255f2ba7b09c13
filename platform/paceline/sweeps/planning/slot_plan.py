"""Slots, worker shapes and rungs of a sweep, settled once the cluster's resources are known."""

from typing import TYPE_CHECKING, Any

from paceline.cluster.preflight import Resources
from paceline.cluster.python_objects import python_objects
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.imports import user_folders
from paceline.config.shareable import shareable
from paceline.sweeps.planning.sizing import first_rung, fitting_shapes, slots_for
from paceline.sweeps.results.record import common_tags
from paceline.sweeps.search.trial_specs import TrialSpecBuilder

if TYPE_CHECKING:
    from paceline.sweeps.launch import SweepLaunch


class SlotPlan:
    """How many trials run side by side, on which worker groups, and where they are compared.

    Raises:
        EnvironmentFault: there is less than the sweep needs.
        ConfigError: the first rung has to be given.
    """

    def __init__(self, launch: "SweepLaunch", available: Resources) -> None:
        section, planned_trials = launch.sweep, launch.left
        where = "the cluster" if on_cluster(launch.address) else "this machine"
        self.available = available
        self.shapes = fitting_shapes(launch.configs.of(planned_trials), available, where)
        self.slots = slots_for(section, self.shapes, available, len(planned_trials) or launch.total)
        self.length, self.first_rung = 0.0, 0.0
        self.rungs: dict[str, Any] | None = None
        if section.scheduler != "none":
            self.length = launch.configs.longest(launch.planned_trials, section.budget_unit)
            self.first_rung = first_rung(section, self.length)
            factor = section.rung_factor if section.scheduler == "asha" else None
            self.rungs = {"first": self.first_rung, "factor": factor, "unit": section.budget_unit}


def base_of(launch: "SweepLaunch") -> WorkerSpec:
    """What the worker_specs of all trials have in common, ready to travel."""
    base = WorkerSpec(
        config_json=shareable(launch.config).model_dump_json(),
        objects=python_objects(launch.config),
        import_folders=() if launch.address else user_folders(),
    )
    return base.travelling()


def spec_builder_of(launch: "SweepLaunch", plan: SlotPlan, base: WorkerSpec) -> TrialSpecBuilder:
    """What makes the trials' orders."""
    config = launch.config
    return TrialSpecBuilder(
        base=base,
        folder=str(launch.folder.path),
        sweep_id=launch.folder.run_id,
        uri=launch.uri,
        experiment=config.tracking.experiment or config.name,
        tags=common_tags(),
        available=plan.available,
        rungs=plan.rungs,
        predicted_bytes=launch.predicted_bytes,
        store=launch.claimed.store,
    )
