"""What a sweep needs, and how much of it there is room for."""

import math
from pathlib import Path
from typing import Any

import pytest
import ray

from paceline.cluster.placement import Room
from paceline.cluster.preflight import Resources, cluster_resources, warn_of_fixed_size
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, EnvironmentFault
from paceline.sweeps.launch import SlotPlan
from paceline.sweeps.messages import GroupShape
from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.planning.sizing import (
    TrialConfigs,
    first_rung,
    fitting_shapes,
    group_shape,
    groups_that_fit,
    slots_for,
    trial_length,
)
from paceline.sweeps.sweep import sweep
from paceline.sweeps.trial import PlannedTrial
from support.sweeps.configs import RATES, sweep_config
from support.sweeps.launches import RecordingListener, launch_of
from support.sweeps.trainables import measured_data

POINTS = [PlannedTrial("0000", {"optimizer.lr": 0.1}), PlannedTrial("0001", {"data.global_batch_size": 64})]
OWN_DATA = {"path": "support.sweeps.user_code:build_anything", "global_batch_size": 32}


DATA = {"name": "synthetic", "num_samples": 640, "num_validation_samples": 8, "global_batch_size": 32}


def config(sweep: dict[str, Any] | None = None, **sections: Any) -> ExperimentConfig:
    return sweep_config(RATES, {"data": DATA, **sections}, **(sweep or {}))


def of_nodes(*nodes: tuple[float, float]) -> Resources:
    """A cluster of nodes with so many cores and GPUs."""
    return Resources(tuple(Room(*node) for node in nodes))


THREE_NODES = of_nodes((6.0, 2.0), (6.0, 2.0), (2.0, 0.0))


@pytest.mark.parametrize(
    ("shape", "cluster", "room"),
    [
        (GroupShape(1, 4.0, 0.0, "pack"), THREE_NODES, 2),  # 14 cores in all, but twice 6 and once 2
        (GroupShape(2, 2.0, 0.0, "strict_pack"), THREE_NODES, 2),
        (GroupShape(2, 2.0, 0.0, "strict_spread"), THREE_NODES, 3),
        (GroupShape(1, 1.0, 0.1, "pack"), THREE_NODES, 12),
        (GroupShape(3, 1.0, 1.0, "strict_pack"), THREE_NODES, 0),
        (GroupShape(1, 1.0, 2.0, "strict_pack"), Resources.of_machine(8.0, 5.0), 2),
    ],
)
def test_room_is_counted_node_by_node(shape: GroupShape, cluster: Resources, room: int) -> None:
    assert groups_that_fit(shape, cluster) == room


def test_slots_are_as_many_as_the_nodes_hold(golden: Any) -> None:
    nodes = of_nodes((6.0, 0.0), (6.0, 0.0))
    shapes = [GroupShape(1, 4.0, 0.0, "pack"), GroupShape(1, 1.0, 0.0, "pack")]
    assert slots_for(section_of(config()), shapes, nodes, 10) == 2
    with pytest.raises(EnvironmentFault) as caught:
        slots_for(section_of(config({"slots": 3})), shapes, nodes, 10)
    assert (caught.value.code, caught.value.fields) == ("too-many-slots", {"asked": 3, "room": 2})
    golden(str(caught.value))


@pytest.mark.parametrize(
    ("scaling", "code"),
    [
        ({"num_workers": 1, "cpus_per_worker": 5}, "worker-too-large"),
        ({"num_workers": 8, "cpus_per_worker": 1, "placement": "strict_pack"}, "placement-impossible"),
        ({"num_workers": 16, "cpus_per_worker": 1}, "trial-too-large"),
    ],
)
def test_trial_that_fits_on_no_node_is_refused(scaling: dict[str, Any], code: str, golden: Any) -> None:
    each = config(scaling={**scaling, "use_gpu": False})
    with pytest.raises(EnvironmentFault) as caught:
        fitting_shapes([each], of_nodes((4.0, 0.0), (4.0, 0.0)), "the cluster")
    assert caught.value.code == code
    golden(str(caught.value))


def test_trial_with_too_few_gpus_is_not_trained_on_cpu(golden: Any) -> None:
    each = config(scaling={"num_workers": 4})
    with pytest.raises(EnvironmentFault) as caught:
        fitting_shapes([each], Resources.of_machine(8.0, 2.0), "this machine")
    assert (caught.value.code, caught.value.fields["asked"]) == ("too-few-gpus", 4)
    assert fitting_shapes([each], Resources.of_machine(8.0, 0.0), "this machine")[0].gpus == 0
    golden(str(caught.value))


def test_data_parallel_without_ray_workers_gets_a_worker_with_two_gpus() -> None:
    each = config(parallel={"strategy": "data_parallel"}, scaling={"num_workers": 0})
    assert group_shape(each, Resources.of_machine(8.0, 4.0)).gpus_per_worker == 2.0


def test_data_of_points_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measured_data(monkeypatch)
    configs = TrialConfigs(config())
    assert [each.data.global_batch_size for each in configs.of(POINTS)] == [32, 64]
    assert (configs.longest(POINTS, "samples"), len(asked)) == (640, 1)
    assert configs.longest([*POINTS, PlannedTrial("0002", {"data.num_samples": 1280})], "samples") == 1280
    assert len(asked) == 2
    # one that took over another one's values
    assert configs.of([PlannedTrial("0000", {"optimizer.lr": 0.4})])[0].optimizer.lr == 0.4
    # without known points, those of the config
    assert [each.sweep for each in configs.of([])] == [None]
    assert (configs.longest([], "epochs"), configs.longest([], "seconds")) == (1, math.inf)


def test_resources_of_a_cluster_are_those_of_its_living_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = {"Alive": False, "Resources": {"CPU": 64.0}}
    with_gpu, without = ({"Alive": True, "Resources": own} for own in ({"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}))
    monkeypatch.setattr(ray, "nodes", lambda: [with_gpu, without, dead])
    assert cluster_resources() == of_nodes((4.0, 1.0), (8.0, 0.0))
    monkeypatch.setattr(ray, "nodes", lambda: [without, dead])
    assert cluster_resources() == Resources.of_machine(8.0, 0.0)


def test_plan_settles_slots_and_rungs(tmp_path: Path) -> None:
    section = {"scheduler": "asha", "rung_factor": 4, "metric": "val/loss"}
    each = config(sweep=section, scaling={"num_workers": 2, "use_gpu": False}, trainer={"epochs": 4})
    plan = SlotPlan(launch_of(each, tmp_path, POINTS), Resources.of_machine(5.0, 0.0))
    assert (plan.slots, plan.shapes, plan.length) == (2, [GroupShape(2, 1.0, 0.0, "pack")] * 2, 4 * 640)
    assert plan.rungs == {"first": plan.length / 16, "factor": 4, "unit": "samples"}


@pytest.mark.parametrize(
    ("trainer", "epochs", "samples"),
    [
        ({}, 1, math.inf),
        ({"epochs": 18}, 18, math.inf),
        ({"max_steps": 10}, math.inf, 320),
        ({"epochs": 18, "max_steps": 10}, math.inf, math.inf),
    ],
)
def test_length_of_a_trial_with_data_of_unknown_size(trainer: dict[str, Any], epochs: float, samples: float) -> None:
    assert trial_length(config(data=OWN_DATA, trainer=trainer), None) == (epochs, samples)


@pytest.mark.parametrize(("scheduler", "rung"), [("asha", 2), ("median", 1.8), ("pbt", 1.8)])
def test_first_rung_in_epochs_needs_no_size_of_the_data(scheduler: str, rung: float) -> None:
    section = {"scheduler": scheduler, "budget_unit": "epochs"}
    own = config(data=OWN_DATA, trainer={"epochs": 18}, sweep=section)
    assert first_rung(section_of(own), TrialConfigs(own).longest([], "epochs")) == pytest.approx(rung)


@pytest.mark.parametrize(
    ("fields", "length"),
    [({"first_rung": 8000}, 8000), ({"budget_unit": "samples"}, math.inf), ({"budget_unit": "epochs"}, math.inf)],
)
def test_first_rung_that_cannot_be_is_refused(fields: dict[str, Any], length: float, golden: Any) -> None:
    section = section_of(config({"scheduler": "asha", **fields}))
    with pytest.raises(ConfigError) as caught:
        first_rung(section, length)
    [problem] = caught.value.problems
    assert (problem.code, problem.key) == ("sweep", "sweep.first_rung")
    golden(str(problem))
    if "first_rung" in fields:
        assert first_rung(section, length + 1) == first_rung(section, math.inf) == 8000


def test_elastic_workers_are_warned_of_before_anything_starts(tmp_path: Path, golden: Any) -> None:
    listener = RecordingListener()
    base = {"scaling": {"num_workers": [1, 2]}, "storage": {"path": str(tmp_path / "runs")}}
    asked = sweep_config({"data.global_batch_size": [33]}, base)  # which two workers cannot share
    with pytest.raises(ConfigError):
        sweep(asked, listener=listener)  # type: ignore[arg-type]
    assert [kind for kind, _ in listener.events] == ["warning"]
    golden(listener.events[0][1]["message"])
    for workers in ([2, 2], 2):
        warn_of_fixed_size(config(scaling={"num_workers": workers}), "a sweep", listener)
    assert len(listener.events) == 1
