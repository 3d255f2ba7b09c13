"""What of a sweep is settled once it is known what there is to run it on."""

from typing import TYPE_CHECKING, Any

from paceline.cluster.assignment import Assignment
from paceline.cluster.preflight import Resources
from paceline.cluster.python_objects import python_objects
from paceline.cluster.session import on_cluster
from paceline.config.imports import user_folders
from paceline.config.shareable import shareable
from paceline.sweeps.planning.sizing import first_rung, fitting_shapes, slots_for
from paceline.sweeps.results.record import common_tags
from paceline.sweeps.search.orders import OrderMaker

if TYPE_CHECKING:
    from paceline.sweeps.launch import SweepLaunch


class Plan:
    """How many trials run side by side, on which worker groups, and where they are compared.

    Raises:
        EnvironmentFault: there is less than the sweep needs.
        ConfigError: the first rung has to be given.
    """

    def __init__(self, launch: "SweepLaunch", available: Resources) -> None:
        section, points = launch.sweep, launch.left
        where = "the cluster" if on_cluster(launch.address) else "this machine"
        self.available = available
        self.shapes = fitting_shapes(launch.configs.of(points), available, where)
        self.slots = slots_for(section, self.shapes, available, len(points) or launch.total)
        self.length, self.first_rung = 0.0, 0.0
        self.rungs: dict[str, Any] | None = None
        if section.scheduler != "none":
            self.length = launch.configs.longest(launch.points, section.budget_unit)
            self.first_rung = first_rung(section, self.length)
            factor = section.rung_factor if section.scheduler == "asha" else None
            self.rungs = {"first": self.first_rung, "factor": factor, "unit": section.budget_unit}


def base_of(launch: "SweepLaunch") -> Assignment:
    """What the assignments of all trials have in common, ready to travel."""
    base = Assignment(
        config_json=shareable(launch.config).model_dump_json(),
        objects=python_objects(launch.config),
        import_folders=() if launch.address else user_folders(),
    )
    return base.travelling()


def maker_of(launch: "SweepLaunch", plan: Plan, base: Assignment) -> OrderMaker:
    """What makes the trials' orders."""
    config = launch.config
    return OrderMaker(
        base=base,
        folder=str(launch.folder.path),
        sweep_id=launch.folder.run_id,
        uri=launch.uri,
        experiment=config.tracking.experiment or config.name,
        tags=common_tags(),
        available=plan.available,
        rungs=plan.rungs,
        predicted_bytes=launch.predicted_bytes,
    )
