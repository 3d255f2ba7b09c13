"""What travels with a trial, and what its workers make of it."""

import pickle
from typing import Any

import pytest

from paceline.cluster.assignment import Assignment, TrialPart
from paceline.cluster.experiment import python_objects, with_objects
from paceline.cluster.preflight import Resources
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.data.synthetic import SyntheticConfig
from paceline.errors import EnvironmentFault
from paceline.sweeps.search.orders import OrderMaker
from paceline.sweeps.search.trainable import STATE, TrialTrainable
from paceline.sweeps.search.tune_config import TRIAL
from paceline.sweeps.trials import Point
from paceline.sweeps.work import Report
from sweeps.played_actor import PlayedActor, answers_at_once

CANARY = "hunter2hunter2"
RATES = [0.1, 0.2]


class Build:
    """A model of the user's own, with a lot of data in it."""

    def __init__(self) -> None:
        self.data = b"x" * 1_000_000

    def __call__(self, **_: Any) -> None: ...


def config() -> ExperimentConfig:
    data = {"name": "synthetic", "num_samples": 64, "num_validation_samples": 8, "global_batch_size": 32}
    space = {"optimizer.lr": RATES}
    return validate({"name": "run", "model": {"name": "mlp"}, "data": data, "sweep": {"space": space}})


def maker_of(base: ExperimentConfig) -> OrderMaker:
    assignment = Assignment(base.model_dump_json(), python_objects(base)).travelling()
    return OrderMaker(assignment, "/sweep", "sweep", "http://127.0.0.1:9", "run", {}, Resources(2.0, 0.0))


def with_model() -> OrderMaker:
    return maker_of(with_objects(config(), model=Build(), data=None, task=None))


def config_of(maker: OrderMaker, overrides: dict[str, Any]) -> ExperimentConfig:
    """The config of a trial as its workers have it."""
    part: TrialPart = pickle.loads(maker.make(Point("0000", overrides)).assignment)
    return maker.base.for_trial(part).config()


def test_python_objects_do_not_travel_with_a_trial() -> None:
    maker = with_model()
    assert len(pickle.dumps(maker.base)) > 1_000_000
    assert len(maker.make(Point("0000", {"optimizer.lr": 0.2})).assignment) < 50_000


def test_workers_put_the_objects_back() -> None:
    trial = config_of(with_model(), {"optimizer.lr": 0.2})
    assert trial.optimizer.lr == 0.2
    assert type(trial.model.path) is Build  # type: ignore[union-attr]


def test_an_axis_may_put_a_component_in_the_place_of_an_object() -> None:
    maker = with_model()
    assert config_of(maker, {"model.name": "cnn"}).model.name == "cnn"  # type: ignore[union-attr]
    assert config_of(maker, {"model.path": "sweeps.test_orders:Build"}).model.path == "sweeps.test_orders:Build"  # type: ignore[union-attr]


def test_data_are_asked_for_their_sizes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    sizes = SyntheticConfig.sizes
    monkeypatch.setattr(SyntheticConfig, "sizes", lambda self: (asked.append(self), sizes(self))[1])
    maker = pickle.loads(pickle.dumps(maker_of(config())))
    orders = [maker.make(Point("0000", {"optimizer.lr": rate})) for rate in (0.1, 0.2, 0.3)]
    assert {order.total_steps for order in orders} == {2}
    assert len(asked) == 1


def test_a_secret_is_not_in_a_trials_record() -> None:
    base = config().with_overrides({"model": {"path": "sweeps.test_orders:Build", "args": {"password": CANARY}}})
    for overrides in ({"model.args.password": CANARY}, {"model.args": {"password": CANARY}}):
        record = maker_of(base).make(Point("0000", overrides)).record
        assert "password" in record.name
        assert CANARY[:6] not in repr(record)


class Playing:
    """A trainable at a played desk."""

    def __init__(self, maker: OrderMaker, state: str = "running") -> None:
        self.desk = PlayedActor(run_to_rung=Report(state))
        self.trainable = TrialTrainable.__new__(TrialTrainable)
        self.trainable.setup(self.point(0.1), self.desk, maker)

    @staticmethod
    def point(rate: float) -> dict[str, Any]:
        return {TRIAL: {"id": "0000", "values": {"optimizer.lr": RATES.index(rate)}}}

    def rates(self) -> list[float]:
        """Of each order that the desk got."""
        return [order.point.overrides["optimizer.lr"] for order, _ in self.desk.calls("run_to_rung")]


def test_a_trainable_makes_an_order_once_for_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_at_once(monkeypatch)
    playing = Playing(maker_of(config()))
    playing.trainable.step()
    playing.trainable.step()
    (first, _), (second, _) = playing.desk.calls("run_to_rung")
    assert first is second
    playing.trainable.reset_config(playing.point(0.2))
    playing.trainable.step()
    assert playing.rates() == [0.1, 0.1, 0.2]


def test_a_trial_whose_data_are_gone_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: object) -> None:
        raise EnvironmentFault("the data set is not there any more")

    answers_at_once(monkeypatch)
    monkeypatch.setattr(SyntheticConfig, "sizes", gone)
    playing = Playing(maker_of(config()))
    assert playing.trainable.step()[STATE] == "skipped"
    assert playing.desk.calls("skip") == [[Point("0000", {"optimizer.lr": 0.1}), "the data set is not there any more"]]
