"""Tune's thread: what it leaves behind, and what it tells the desk."""

import os
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from paceline.config.loading import validate
from paceline.errors import EnvironmentFault
from paceline.sweeps.log import SweepHistory
from paceline.sweeps.search import tuning
from paceline.sweeps.search.tune_config import TRIAL
from paceline.sweeps.search.tuning import TuneThread, Tuning, require_this_node
from sweeps.played_actor import PlayedActor

TREE = {"name": "run", "model": {"name": "mlp"}, "data": {"name": "synthetic"}}
TUNE = ("TUNE_", "RAY_CHDIR", "RAY_AIR")


class Tuner:
    """Notes the environment that it is run in, and stays until it may end."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.runs, self.may_end = Event(), Event()

    def fit(self) -> None:
        self.environment = of_tune()
        self.runs.set()
        self.may_end.wait(10)
        raise RuntimeError("it failed")


def of_tune() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(TUNE)}


def thread_of(tuner: Tuner, monkeypatch: pytest.MonkeyPatch, folder: Path) -> TuneThread:
    config = validate({**TREE, "sweep": {"space": {"optimizer.lr": [0.1]}}})
    thread = TuneThread(Tuning(config, [], 3, 0.0, 0.0, SweepHistory(), folder), PlayedActor(), None)  # type: ignore[arg-type]
    monkeypatch.setattr(thread, "_tuner", lambda: tuner)
    return thread


def test_tunes_settings_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in of_tune():
        monkeypatch.delenv(name)
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "7")
    tuner = Tuner()
    tuner.may_end.set()
    thread = thread_of(tuner, monkeypatch, tmp_path)
    thread.run()
    assert str(thread.error) == "it failed"
    assert tuner.environment["TUNE_MAX_PENDING_TRIALS_PG"] == "3"
    assert tuner.environment["TUNE_GLOBAL_CHECKPOINT_S"] == "7"
    assert tuner.environment["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] == "1"
    assert of_tune() == {"TUNE_GLOBAL_CHECKPOINT_S": "7"}


def test_a_thread_that_has_ended_leaves_no_word_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner()
    thread = thread_of(tuner, monkeypatch, tmp_path)
    thread.start()
    assert tuner.runs.wait(10)
    ends = tuning._UntilOver(str(tmp_path))
    assert not ends.stop_all()
    thread.finish_early()
    assert ends.stop_all()
    tuner.may_end.set()
    thread.leave(10)
    assert not thread.is_alive()
    assert not ends.stop_all()


def test_a_trial_that_tune_gives_up_is_told_to_the_desk() -> None:
    desk = PlayedActor()
    trial = SimpleNamespace(config={TRIAL: {"id": "0007"}}, get_error=lambda: RuntimeError("its actor died\nmore"))
    tuning._Prunings(desk, "asha", "samples").on_trial_error(1, [], trial)
    assert desk.calls("give_up") == [["0007", "Ray Tune gave up its part of the trial: its actor died"]]


@pytest.mark.parametrize(("free", "slots"), [(1.0, 1), (1.0, 3), (0.9999, 3), (1.0, 7)])
def test_a_node_of_ones_own_suffices(free: float, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node_with(free, monkeypatch)
    require_this_node(slots)


@pytest.mark.parametrize(("free", "slots"), [(0.0, 1), (0.0001, 3), (0.6667, 3)])
def test_a_second_sweep_from_one_node_is_refused(free: float, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node_with(free, monkeypatch)
    with pytest.raises(EnvironmentFault, match="another sweep runs from this node"):
        require_this_node(slots)


def node_with(free: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster on whose node here so much is left of what tells it from others."""

    def left() -> dict[str, Any]:
        return {"node:10.0.0.1": free} if free else {}

    monkeypatch.setattr(tuning, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    monkeypatch.setattr(ray, "available_resources", left)
