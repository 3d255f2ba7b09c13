"""The driver's part of a sweep: how it follows Tune to its end, and what it leaves."""

import errno
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from ray.exceptions import RayActorError

from paceline.config.loading import validate
from paceline.errors import EnvironmentFault, RunFailed
from paceline.sweeps import running
from paceline.sweeps.desk.rules import Rules
from paceline.sweeps.folder import SweepFolder
from paceline.sweeps.running import Running
from paceline.sweeps.sweep import _result
from paceline.sweeps.trials import Point, Trial
from paceline.sweeps.work import SweepView
from sweeps.launches import Told, launch_of
from sweeps.played_actor import PlayedActor, answers_at_once

POINTS = [Point("0000", {"optimizer.lr": 0.1}), Point("0001", {"optimizer.lr": 0.2})]
FINISHED = [Trial(point.id, point.overrides, state="finished", metrics={"val/accuracy": 0.5}) for point in POINTS]
REPORT = {"error": "", "url": "", "run_id": ""}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray, and without waiting."""
    answers_at_once(monkeypatch)
    monkeypatch.setattr(running, "POLL_SECONDS", 0.005)


class Tune(Thread):
    """Ends by itself, with an error if it is given one; or, if it is to stay, once it is told to."""

    def __init__(self, error: Exception | None = None, stays: bool = False) -> None:
        super().__init__(daemon=True)
        self.error = error
        self.may_end = Event()
        if not stays:
            self.may_end.set()

    def run(self) -> None:
        self.may_end.wait(10)

    def finish_early(self) -> None:
        self.may_end.set()

    def leave(self, seconds: float) -> None:
        self.may_end.set()
        self.join(seconds)


class Scene:
    """A sweep's driver at a played desk, which shows one view after the other, the last one again and again."""

    def __init__(self, folder: Path, views: list[Any], tune: Tune | None = None, **section: Any) -> None:
        self.views = views
        self.tune = tune or Tune()
        sweep = {"space": {"optimizer.lr": [0.1, 0.2]}, "metric": "val/accuracy", **section}
        tree = {"name": "run", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, "sweep": sweep}
        self.listener = Told()
        self.launch = launch_of(validate(tree), folder, POINTS, self.listener)  # type: ignore[arg-type]
        self.statuses: list[str] = []
        self.desk = PlayedActor(view=self._view, close=self._close, trials=FINISHED)
        self.groups = PlayedGroups()
        self.driver = Running(self.launch, self.desk, self.groups, lambda: self.tune)  # type: ignore[arg-type, return-value]

    def _view(self, *_: int) -> Any:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def _close(self, *_: Any) -> dict[str, str]:
        self.statuses.append(self.status)
        return REPORT

    @property
    def status(self) -> str:
        """As the sweep's folder has it."""
        return str(self.launch.folder.read()["status"])


class PlayedGroups:
    """Counts how often it is told what is wanted."""

    def __init__(self) -> None:
        self.followed = 0

    def follow(self, wanted: Any) -> None:
        self.followed += 1

    def join(self, seconds: float) -> None: ...


def view(trials: list[Trial], **changes: Any) -> SweepView:
    return SweepView(trials, [], [], **changes)


def test_a_state_that_takes_long_to_save_is_waited_for(tmp_path: Path) -> None:
    saving = [view([], over="interrupted", busy=1)] * 50
    scene = Scene(tmp_path, [*saving, view(FINISHED, over="interrupted")])
    scene.driver.run()
    assert scene.desk.calls("close")
    assert len(scene.views) == 1
    assert scene.groups.followed > 40
    (told,) = [stage for stage in scene.listener.stages if stage.startswith("stopping")]
    assert told.startswith("stopping (interrupted): running trials save their states")


def test_a_state_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SAVE_SECONDS", 0.05)
    scene = Scene(tmp_path, [view([], over="interrupted", busy=1)])
    assert scene.driver.run().status == "interrupted"


def test_what_tune_has_left_is_told_to_stop(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [view([]), view([], busy=1), view([], busy=1), view(FINISHED)], Tune(ValueError("no")))
    closing = scene.driver.run()
    assert scene.desk.calls("end_early") == [["ValueError: no"]]
    names = [name for name, *_ in scene.desk.told]
    assert "view" in names[names.index("end_early") : names.index("close")]
    assert closing.fault == "ValueError: no"
    assert scene.status == "interrupted"


def test_a_sweep_with_a_metric_that_nobody_reports_is_over(tmp_path: Path) -> None:
    rules = Rules(objectives=(("val/acc", "max"),), seats=1, max_failures=0, fresh_processes=False)
    fault = rules.never_reported(FINISHED[0], [])
    scene = Scene(tmp_path, [view(FINISHED[:1], over=fault, fault=fault)], metric="val/acc", mode="max")
    closing = scene.driver.run()
    assert scene.status == "finished"  # so that the corrected config starts a new one
    assert closing.fault == fault
    with pytest.raises(RunFailed, match="no trial reports 'val/acc'"):
        _result(scene.launch, closing, 1.0)


def test_a_sweep_whose_groups_did_not_start_can_be_gone_on_with(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [view(FINISHED, over="no GPU", fault="no GPU")])
    assert scene.driver.run().fault == "no GPU"
    assert scene.status == "interrupted"


def test_a_full_disk_at_the_end_is_a_fault_and_the_sweep_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    scene = Scene(tmp_path, [view(FINISHED)])
    monkeypatch.setattr(running, "write_best", full)
    monkeypatch.setattr(SweepFolder, "write", full)
    with pytest.raises(EnvironmentFault, match="not writable: No space left on device"):
        scene.driver.run()
    assert scene.desk.calls("close")  # MLflow has it all the same
    assert scene.listener.events == [
        ("warning", {"message": "the best config could not be written: No space left on device"})
    ]
    assert scene.status == "running"


@pytest.mark.parametrize("error", [RayActorError(), KeyboardInterrupt()])
def test_tune_ends_with_the_driver(tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    scene = Scene(tmp_path, [view([])], Tune(stays=True))
    monkeypatch.setattr(scene.listener, "trials", fail)
    with pytest.raises(type(error)):
        scene.driver.run()
    assert not scene.tune.is_alive()
    assert scene.status == "running"


def test_it_has_not_finished_before_its_record_is_closed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [view(FINISHED)])
    assert scene.driver.run().status == "finished"
    assert scene.statuses == ["running"]
    assert scene.status == "finished"


def test_trials_are_put_together_from_what_has_changed(tmp_path: Path) -> None:
    first, second = FINISHED
    scene = Scene(tmp_path, [view([second], version=3), view([first], version=5), view([], version=5)])
    assert scene.driver.run().status == "finished"
    since = [version for _, version in scene.desk.calls("view")]
    assert since[:3] == [0, 3, 5]
    assert scene.launch.folder.best_config.exists()
