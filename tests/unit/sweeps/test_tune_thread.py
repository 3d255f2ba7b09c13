"""Ray Tune's thread and its config: how it ends, what it leaves in the environment, and which values Tune sees."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray.exceptions import RayTaskError
from ray.tune.experiment import Experiment
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.search import SearchGenerator
from ray.tune.utils.callback import _create_default_callbacks

from paceline.cluster.preflight import Resources
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.storage.store_faults import StoreFault
from paceline.sweeps.launch import SlotPlan
from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.search import tune_thread
from paceline.sweeps.search import tune_trials as tune_configs
from paceline.sweeps.search.tune_thread import TuneThread, _NoProgress, require_this_node
from paceline.sweeps.search.tune_trials import TRIAL, AxisPlaces, ListedTrials, planned_trial_of, tune_config
from paceline.sweeps.sweep_log import SweepHistory
from paceline.sweeps.trial import PlannedTrial, Trial
from support.sweeps.configs import RATES, sweep_config
from support.sweeps.fake_actor import FakeActor
from support.sweeps.launches import launch_of

SECRET = "s3://me:S3cr3tWord@host/data"


class FakeTuner:
    """Keeps the environment that it is run in, and stays until it may end."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.runs, self.may_end = Event(), Event()

    def fit(self) -> None:
        self.environment = tune_settings()
        self.runs.set()
        self.may_end.wait(60)
        raise RuntimeError("it failed")


def tune_settings() -> dict[str, str]:
    own = ("TUNE_", "RAY_CHDIR", "RAY_AIR")
    return {name: value for name, value in os.environ.items() if name.startswith(own)}


def new_thread(config: ExperimentConfig, folder: Path, slots: int = 3, num_trials: int = 3) -> TuneThread:
    points = [PlannedTrial(f"{number:04d}", {"optimizer.lr": 0.1}) for number in range(num_trials)]
    launch = launch_of(config, folder / "runs", points)
    plan = SlotPlan(launch, Resources.of_machine(float(slots), 0.0))
    unused: Any = None
    return TuneThread(launch, plan, folder, FakeActor(), unused)


def thread_of(tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch, folder: Path) -> TuneThread:
    thread = new_thread(sweep_config(), folder)
    monkeypatch.setattr(thread, "_tuner", lambda: tuner)
    return thread


def test_settings_of_tune_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tune_settings():
        monkeypatch.delenv(name)
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "7")
    tuner = FakeTuner()
    tuner.may_end.set()
    thread = thread_of(tuner, monkeypatch, tmp_path)
    thread.run()
    assert str(thread.error) == "it failed"
    assert tuner.environment["TUNE_MAX_PENDING_TRIALS_PG"] == "3"
    assert tuner.environment["TUNE_GLOBAL_CHECKPOINT_S"] == "7"
    assert tuner.environment["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] == "1"
    assert tune_settings() == {"TUNE_GLOBAL_CHECKPOINT_S": "7"}


def test_thread_ends_early_and_forgets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = FakeTuner()
    thread = thread_of(tuner, monkeypatch, tmp_path)
    thread.start()
    assert tuner.runs.wait(60)
    stopper = tune_thread._UntilOver(str(tmp_path))
    assert not stopper.stop_all()
    thread.finish_early()
    assert stopper.stop_all()
    tuner.may_end.set()
    thread.leave(10)
    assert not thread.is_alive()
    assert not stopper.stop_all()


AWAY = StoreFault("s3://bucket/runs cannot be used: the store does not answer", "store-silent")


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (RuntimeError("its actor died\nmore"), "give_up"),
        (
            RayTaskError("save", "OSError", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))).as_instanceof_cause(),
            "found_disk_full",
        ),
        (RayTaskError("restore", "StoreFault", AWAY).as_instanceof_cause(), "found_store_fault"),
    ],
)
def test_trial_that_tune_gives_up_is_reported(error: Exception, call: str, golden: Any) -> None:
    coordinator = FakeActor()
    trial = SimpleNamespace(config={TRIAL: {"id": "0007"}}, get_pickled_error=lambda: error)
    tune_thread._Prunings(coordinator, "asha", "samples").on_trial_error(1, [], trial)
    [(called, id, reason)] = coordinator.log
    assert (called, id) == (call, "0007")
    golden(reason)


def test_second_sweep_from_one_node_is_refused(monkeypatch: pytest.MonkeyPatch, golden: Any) -> None:
    resources: dict[str, float] = {}
    monkeypatch.setattr(tune_thread, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    monkeypatch.setattr(ray, "available_resources", lambda: resources)
    with pytest.raises(EnvironmentFault) as caught:
        require_this_node(1)
    assert caught.value.code == "node-in-use"
    golden(str(caught.value))
    resources["node:10.0.0.1"] = 0.6667
    with pytest.raises(EnvironmentFault):
        require_this_node(3)
    for free, slots in ((1.0, 1), (0.9999, 3), (1.0, 7)):
        resources["node:10.0.0.1"] = free
        require_this_node(slots)


def test_listed_points_come_in_their_order_and_once(tmp_path: Path) -> None:
    points = [PlannedTrial(f"{number:04d}", {"optimizer.lr": 0.1 if number % 2 else 0.2}) for number in range(7)]
    section = section_of(sweep_config())
    generator = SearchGenerator(ListedTrials(points, section))
    generator.add_configurations(Experiment("sweep", tune.Trainable, num_samples=10**6))
    found = []
    while not generator.is_finished():
        trial = generator.next_trial()
        if trial is not None:
            found.append(planned_trial_of(trial.config, section))
            generator.on_trial_complete(trial.trial_id, {"val/loss": 1.0})
    assert found == points
    generator.searcher.save_to_dir(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("scheduler", "in_grid"), [("asha", 0), ("pbt", 2)])
def test_only_a_population_is_given_to_tune_at_once(tmp_path: Path, scheduler: str, in_grid: int) -> None:
    config = sweep_config(scheduler=scheduler, metric="val/loss", first_rung=1)
    grid = new_thread(config, tmp_path, num_trials=2)._grid()
    assert len(grid.get("trial", {}).get("grid_search", [])) == in_grid


def test_search_of_an_extension_knows_the_sweep_that_it_extends(tmp_path: Path) -> None:
    """The same command continues one that was interrupted."""
    space, optuna = {"optimizer.lr": {"uniform": [0.1, 0.2]}}, {"search": "optuna", "num_samples": 2}
    thread = new_thread(larger := sweep_config(space, **optuna, seeds=2), tmp_path, num_trials=0)
    ended = [Trial(f"{n:04d}", {"optimizer.lr": 0.13 + n / 100}, "finished", metrics={"val/loss": 1.0}) for n in (0, 1)]
    history, earlier = SweepHistory({trial.id: trial for trial in ended}), (section_of(sweep_config(space, **optuna)),)
    thread._launch = replace(thread._launch, history=history, earlier=earlier)
    made = thread._searcher().suggest("tune")
    assert planned_trial_of(made, section_of(larger)) == PlannedTrial("0002", {"optimizer.lr": 0.13, "seed": 1})


def test_point_of_a_long_axis_costs_no_search_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [0.001 * (number + 1) for number in range(500)]
    section = section_of(sweep_config({"optimizer.lr": rates}))
    searcher = ListedTrials([PlannedTrial(f"{n:04d}", {"optimizer.lr": rate}) for n, rate in enumerate(rates)], section)
    looks: list[Any] = []
    monkeypatch.setattr(tune_configs, "_text", lambda value: looks.append(value) or json.dumps(value))
    for number in range(500):
        assert searcher.suggest(str(number))["trial"]["values"] == {"optimizer.lr": number}  # type: ignore[index]
    assert len(looks) == 500


USER_CODE = {"model": {"path": "json:loads"}}


def test_tune_sees_places_instead_of_the_values_of_lists() -> None:
    sweep = section_of(sweep_config({"model.args.s": ["s3://me@host/data", SECRET], **RATES}, USER_CODE))
    point = PlannedTrial("0007", {"model.args.s": SECRET, "optimizer.lr": 0.1, "seed": 4})
    made = tune_config(point, AxisPlaces(sweep))
    assert made == {"trial": {"id": "0007", "values": {"model.args.s": 1, "optimizer.lr": 0, "seed": 4}}}
    assert planned_trial_of(made, sweep) == point


@pytest.mark.parametrize("value", [1, True, "1", [1], {"b": 1, "a": [True]}, None])
def test_values_that_are_alike_are_kept_apart(value: Any) -> None:
    values = [True, 1, "1", None, [1], {"a": [1], "b": 1}, {"a": [True], "b": 1}]
    sweep = section_of(sweep_config({"model.args.x": values}, USER_CODE))
    found = planned_trial_of(
        tune_config(PlannedTrial("0000", {"model.args.x": value}), AxisPlaces(sweep)), sweep
    ).params["model.args.x"]
    assert (found, type(found)) == (value, type(value))
    assert json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)


def test_tune_adds_no_progress_callback_that_keeps_trials() -> None:
    callbacks = _create_default_callbacks([_NoProgress()], air_verbosity=None)
    assert [type(each) for each in callbacks if isinstance(each, TrialProgressCallback)] == [_NoProgress]
