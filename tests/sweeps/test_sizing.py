"""What a sweep needs, and how much of it there is room for."""

import math
from pathlib import Path
from typing import Any

import pytest
import ray

from paceline.cluster.preflight import Resources, cluster_resources, warn_of_fixed_size
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.data.synthetic import SyntheticConfig
from paceline.errors import ConfigError, EnvironmentFault
from paceline.sweeps.planning import sizing
from paceline.sweeps.planning.plan import Plan
from paceline.sweeps.planning.sizing import (
    PointConfigs,
    first_rung,
    fitting_shapes,
    group_shape,
    groups_that_fit,
    slots_for,
    trial_length,
)
from paceline.sweeps.sweep import section_of, sweep
from paceline.sweeps.trials import Point
from paceline.sweeps.work import GroupShape
from sweeps.launches import Told, launch_of

POINTS = [Point("0000", {"optimizer.lr": 0.1}), Point("0001", {"data.global_batch_size": 64})]


def config(**sections: Any) -> ExperimentConfig:
    data = {"name": "synthetic", "num_samples": 640, "num_validation_samples": 8, "global_batch_size": 32}
    tree = {"name": "run", "model": {"name": "mlp"}, "data": data, "sweep": {"space": {"optimizer.lr": [0.1, 0.2]}}}
    return validate({**tree, **sections})


def of_nodes(*nodes: tuple[float, float]) -> Resources:
    """A cluster of these nodes."""
    cpus, gpus = (sum(amounts) for amounts in zip(*nodes, strict=True))
    return Resources(cpus, gpus, max(gpus for _, gpus in nodes), nodes)


@pytest.mark.parametrize(
    ("shape", "room"),
    [
        (GroupShape(1, 4.0, 0.0, "pack"), 2),  # 14 cores in all, but twice 6 and once 2
        (GroupShape(1, 2.0, 0.0, "pack"), 7),
        (GroupShape(2, 2.0, 0.0, "pack"), 3),
        (GroupShape(2, 2.0, 0.0, "strict_pack"), 2),
        (GroupShape(2, 2.0, 0.0, "strict_spread"), 3),
        (GroupShape(3, 2.0, 0.0, "strict_spread"), 1),
        (GroupShape(1, 1.0, 1.0, "pack"), 4),
        (GroupShape(1, 1.0, 0.1, "pack"), 12),
        (GroupShape(3, 1.0, 1.0, "strict_pack"), 0),
    ],
)
def test_room_is_counted_node_by_node(shape: GroupShape, room: int) -> None:
    assert groups_that_fit(shape, of_nodes((6.0, 2.0), (6.0, 2.0), (2.0, 0.0))) == room


def test_room_of_a_single_node() -> None:
    assert groups_that_fit(GroupShape(2, 1.5, 0.0, "pack"), Resources(8.0, 0.0)) == 2
    assert groups_that_fit(GroupShape(1, 1.0, 2.0, "strict_pack"), Resources(8.0, 5.0)) == 2


def test_slots_are_as_many_as_the_nodes_hold() -> None:
    nodes = of_nodes((6.0, 0.0), (6.0, 0.0))
    shapes = [GroupShape(1, 4.0, 0.0, "pack"), GroupShape(1, 1.0, 0.0, "pack")]
    assert slots_for(section_of(config()), shapes, nodes, 10) == 2
    three = section_of(config(sweep={"space": {"optimizer.lr": [0.1]}, "slots": 3}))
    with pytest.raises(EnvironmentFault, match=r"12 and 0 on 2 nodes.*lower sweep\.slots to 2"):
        slots_for(three, shapes, nodes, 10)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"num_workers": 1, "cpus_per_worker": 5}, "no node of the cluster has them"),
        ({"num_workers": 8, "cpus_per_worker": 1, "placement": "strict_pack"}, "scaling.placement strict_pack"),
        ({"num_workers": 16, "cpus_per_worker": 1}, "the cluster has 8 and 0"),
    ],
)
def test_what_fits_on_no_node_is_refused(scaling: dict[str, Any], words: str) -> None:
    each = config(scaling={**scaling, "use_gpu": False})
    with pytest.raises(EnvironmentFault, match=words):
        fitting_shapes([each], of_nodes((4.0, 0.0), (4.0, 0.0)), "the cluster")


def test_data_parallel_without_ray_workers_gets_a_worker_with_two_gpus() -> None:
    each = config(parallel={"strategy": "data_parallel"}, scaling={"num_workers": 0})
    assert group_shape(each, Resources(8.0, 4.0)).gpus_per_worker == 2.0


def test_data_are_asked_for_their_sizes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    sizes = SyntheticConfig.sizes
    monkeypatch.setattr(SyntheticConfig, "sizes", lambda self: (asked.append(self), sizes(self))[1])
    configs = PointConfigs(config())
    more = [*POINTS, Point("0002", {"data.num_samples": 1280})]
    assert configs.longest(POINTS, "samples") == 640
    assert len(asked) == 1
    assert configs.longest(more, "samples") == 2 * configs.longest(POINTS, "samples")
    assert len(asked) == 2


def test_points_are_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = sizing.trial_config
    monkeypatch.setattr(sizing, "trial_config", lambda *given: (made.append(given), make(*given))[1])
    configs = PointConfigs(config())
    assert [each.data.global_batch_size for each in configs.of(POINTS)] == [32, 64]
    configs.of(POINTS[1:])
    configs.longest(POINTS, "epochs")
    assert len(made) == 2
    # one that took over another one's values
    assert configs.of([Point("0000", {"optimizer.lr": 0.4})])[0].optimizer.lr == 0.4
    assert len(made) == 3


def test_without_points_it_is_the_config_as_it_stands() -> None:
    configs = PointConfigs(config())
    assert [each.sweep for each in configs.of([])] == [None]
    assert configs.longest([], "epochs") == 1
    assert configs.longest([], "seconds") == math.inf


@pytest.mark.parametrize("sizes", [[(4.0, 0.0)], [(4.0, 1.0), (8.0, 0.0)]])
def test_a_clusters_resources_are_those_of_its_living_nodes(
    sizes: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}} for cpus, gpus in sizes]
    total = {"CPU": sum(cpus for cpus, _ in sizes), "GPU": sum(gpus for _, gpus in sizes)}
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64.0}}])
    monkeypatch.setattr(ray, "cluster_resources", lambda: total)
    assert cluster_resources() == (of_nodes(*sizes) if len(sizes) > 1 else Resources(4.0, 0.0))


def test_a_plan_settles_slots_and_rungs(tmp_path: Path) -> None:
    section = {"space": {"optimizer.lr": [0.1, 0.2]}, "scheduler": "asha", "rung_factor": 4, "metric": "val/loss"}
    each = config(sweep=section, scaling={"num_workers": 2, "use_gpu": False}, trainer={"epochs": 4})
    plan = Plan(launch_of(each, tmp_path, POINTS), Resources(5.0, 0.0))
    assert plan.slots == 2
    assert plan.shapes == [GroupShape(2, 1.0, 0.0, "pack")] * 2
    assert plan.length == 4 * 640
    assert plan.rungs == {"first": plan.length / 16, "factor": 4, "unit": "samples"}


def own_data() -> None:
    """Stands for the user's own data, whose size nobody knows before they are loaded."""


@pytest.mark.parametrize(
    ("trainer", "epochs", "samples"),
    [
        ({}, 1, math.inf),
        ({"epochs": 18}, 18, math.inf),
        ({"max_steps": 10}, math.inf, 320),
        ({"epochs": 18, "max_steps": 10}, math.inf, math.inf),
    ],
)
def test_the_length_of_a_trial_with_data_of_unknown_size(
    trainer: dict[str, Any], epochs: float, samples: float
) -> None:
    own = {"path": f"{__name__}:own_data", "global_batch_size": 32}
    assert trial_length(config(data=own, trainer=trainer), None) == (epochs, samples)


@pytest.mark.parametrize(("scheduler", "rung"), [("asha", 2), ("median", 1.8), ("pbt", 1.8)])
def test_in_epochs_the_first_rung_needs_no_size_of_the_data(scheduler: str, rung: float) -> None:
    section = {"space": {"optimizer.lr": [0.1, 0.2]}, "scheduler": scheduler, "budget_unit": "epochs"}
    own = config(data={"path": f"{__name__}:own_data"}, trainer={"epochs": 18}, sweep=section)
    assert first_rung(section_of(own), PointConfigs(own).longest([], "epochs")) == pytest.approx(rung)


def test_a_first_rung_that_no_trial_reaches_is_refused() -> None:
    section = section_of(config(sweep={"space": {"optimizer.lr": [0.1]}, "scheduler": "asha", "first_rung": 8000}))
    assert first_rung(section, 8001) == first_rung(section, math.inf) == 8000
    with pytest.raises(ConfigError, match=r"no trial is longer than 8,000 samples, .*such as 889"):
        first_rung(section, 8000)


@pytest.mark.parametrize(("unit", "example"), [("samples", "first_rung: 10_000, or"), ("epochs", "first_rung: 1")])
def test_a_first_rung_that_has_to_be_given(unit: str, example: str) -> None:
    section = {"space": {"optimizer.lr": [0.1, 0.2]}, "scheduler": "asha", "budget_unit": unit}
    with pytest.raises(ConfigError) as caught:
        first_rung(section_of(config(sweep=section)), math.inf)
    [problem] = caught.value.problems
    assert f"the length of a trial in {unit} is not known" in problem.reason
    assert example in problem.hint
    assert "trials are first compared" in problem.hint


@pytest.mark.parametrize(("workers", "warns"), [([1, 2], True), ([2, 2], False), (2, False)])
def test_who_asks_for_elastic_workers_is_told_where_their_number_stays(workers: object, warns: bool) -> None:
    told = Told()
    warn_of_fixed_size(config(scaling={"num_workers": workers}), "a sweep", told)
    messages = [str(details["message"]) for _, details in told.events]
    assert messages == ["a sweep keeps its 2 workers: scaling.min_workers: 1 has no effect"] * warns


def test_a_sweep_tells_it_before_anything_is_started(tmp_path: Path) -> None:
    told = Told()
    asked = config(
        scaling={"num_workers": [1, 2]},
        storage={"path": str(tmp_path / "runs")},
        sweep={"space": {"data.global_batch_size": [33]}},  # which two workers cannot share
    )
    with pytest.raises(ConfigError, match="33"):
        sweep(asked, listener=told)  # type: ignore[arg-type]
    assert any("has no effect" in str(details["message"]) for _, details in told.events)
