"""What a trial's workers get, and Tune's trainable at a coordinator, without Ray."""

from typing import Any

import pytest

from paceline.cluster.preflight import Resources
from paceline.cluster.user_code import python_objects
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.data.synthetic import SyntheticConfig
from paceline.storage.address import RunStore
from paceline.sweeps.search.trainable import TrialTrainable
from paceline.sweeps.search.trial_specs import TrialSpecBuilder
from paceline.sweeps.search.tune_trials import TRIAL
from support.sweeps.fake_actor import FakeActor


def spec_builder_of(base: ExperimentConfig, store: RunStore | None = None) -> TrialSpecBuilder:
    """Makes the specs of trials of a sweep named `run`."""
    worker_spec = WorkerSpec(base.model_dump_json(), python_objects(base)).travelling()
    room = Resources.of_machine(2.0, 0.0)
    return TrialSpecBuilder(worker_spec, "/sweep", "sweep", "http://127.0.0.1:9", "run", {}, room, store=store)


def tuned(place: int, id: str = "0000") -> dict[str, Any]:
    """Tune's config of the trial that has the learning rate at a place of its axis."""
    return {TRIAL: {"id": id, "values": {"optimizer.lr": place}}}


def trainable_at(coordinator: FakeActor, builder: TrialSpecBuilder, id: str = "0000") -> TrialTrainable:
    """Tune's trainable of a trial that has the first learning rate."""
    trainable = TrialTrainable.__new__(TrialTrainable)
    trainable.setup(tuned(0, id), coordinator, builder)
    return trainable


def measured_data(monkeypatch: pytest.MonkeyPatch) -> list[SyntheticConfig]:
    """The synthetic data whose sizes are asked for from now on."""
    asked: list[SyntheticConfig] = []
    sizes = SyntheticConfig.sizes
    monkeypatch.setattr(SyntheticConfig, "sizes", lambda self: (asked.append(self), sizes(self))[1])
    return asked
