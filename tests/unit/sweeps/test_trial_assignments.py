"""What a trial's workers get, and what Tune's trainable asks for."""

import pickle
from typing import Any

import pytest

from paceline.cluster.user_code import with_objects
from paceline.cluster.worker_spec import TrialWorkerSpec
from paceline.data.synthetic import SyntheticConfig
from paceline.errors import EnvironmentFault
from paceline.sweeps.messages import TrialReport
from paceline.sweeps.search.trainable import STATE
from paceline.sweeps.search.trial_specs import TrialSpecBuilder
from paceline.sweeps.trial import PlannedTrial
from support.sweeps.configs import sweep_config
from support.sweeps.fake_actor import FakeActor, patch_ray_get
from support.sweeps.trainables import measured_data, spec_builder_of, trainable_at, tuned
from support.sweeps.user_code import LargeModel

CANARY = "hunter2hunter2"
PATH = "support.sweeps.user_code:LargeModel"


DATA = {"name": "synthetic", "num_samples": 64, "num_validation_samples": 8, "global_batch_size": 32}
CONFIG = sweep_config(base={"data": DATA})


@pytest.fixture
def maker() -> TrialSpecBuilder:
    """For a config with a Python object as its model."""
    return spec_builder_of(with_objects(CONFIG, model=LargeModel(), data=None, task=None))


def config_of(maker: TrialSpecBuilder, params: dict[str, Any]) -> Any:
    """The config of a trial as its workers have it."""
    part: TrialWorkerSpec = pickle.loads(maker.make(PlannedTrial("0000", params)).worker_spec)
    return maker.base.for_trial(part).config()


def test_python_objects_do_not_travel_with_each_trial_and_an_axis_replaces_them(maker: TrialSpecBuilder) -> None:
    assert len(pickle.dumps(maker.base)) > 1_000_000
    assert len(maker.make(PlannedTrial("0000", {"optimizer.lr": 0.2})).worker_spec) < 50_000
    trial = config_of(maker, {"optimizer.lr": 0.2})
    assert trial.optimizer.lr == 0.2
    assert type(trial.model.path) is LargeModel
    assert config_of(maker, {"model.name": "cnn"}).model.name == "cnn"
    assert config_of(maker, {"model.path": PATH}).model.path == PATH


def test_maker_travels_and_asks_data_for_their_sizes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measured_data(monkeypatch)
    maker = pickle.loads(pickle.dumps(spec_builder_of(CONFIG)))
    assert {maker.make(PlannedTrial("0000", {"optimizer.lr": rate})).total_steps for rate in (0.1, 0.2, 0.3)} == {2}
    assert len(asked) == 1


@pytest.mark.parametrize("params", [{"model.args.password": CANARY}, {"model.args": {"password": CANARY}}])
def test_secret_is_not_in_the_record_of_a_trial(params: dict[str, Any]) -> None:
    base = CONFIG.with_overrides({"model": {"path": PATH, "args": {"password": CANARY}}})
    record = spec_builder_of(base).make(PlannedTrial("0000", params)).record
    assert "password" in record.name
    assert CANARY[:6] not in repr(record)


def test_trainable_makes_an_order_once_for_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_ray_get(monkeypatch)
    coordinator = FakeActor(run_to_rung=TrialReport("running", {"step": 4}))
    trainable = trainable_at(coordinator, spec_builder_of(CONFIG))
    trainable.step()
    trainable.step()
    trainable.reset_config(tuned(1))
    trainable.step()
    specs = [order for order, *_ in coordinator.calls("run_to_rung")]
    assert [told for *_, told in coordinator.calls("run_to_rung")] == [0, 4, 0]
    assert specs[0] is specs[1]
    assert [spec.planned.params["optimizer.lr"] for spec in specs] == [0.1, 0.1, 0.2]


def test_trial_whose_data_are_gone_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: object) -> None:
        raise EnvironmentFault("the data set is not there any more", "data-gone")

    patch_ray_get(monkeypatch)
    monkeypatch.setattr(SyntheticConfig, "sizes", gone)
    coordinator = FakeActor(run_to_rung=TrialReport("running", {"step": 4}))
    assert trainable_at(coordinator, spec_builder_of(CONFIG)).step()[STATE] == "skipped"
    [skip] = coordinator.calls("skip")
    assert skip == [PlannedTrial("0000", {"optimizer.lr": 0.1}), "the data set is not there any more"]
