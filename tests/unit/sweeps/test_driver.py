"""The driver's part of a sweep: how it follows Tune to its end, and what it leaves."""

import errno
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray.exceptions import RayActorError

from paceline.cluster.run_events import EventCursor
from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.errors import EnvironmentFault, RunFailed
from paceline.storage.store_faults import LeaseLost
from paceline.sweeps import sweep_driver
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.messages import UNSEEN, SweepView, ViewCursor
from paceline.sweeps.sweep import _result, _settle
from paceline.sweeps.sweep_costs import Spent, SweepCosts
from paceline.sweeps.sweep_driver import SweepDriver
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.trial import PlannedTrial, Trial
from paceline.sweeps.worker_group_manager import WorkerGroupManager
from support.cluster.coordinators import no_space
from support.sweeps.configs import sweep_config
from support.sweeps.fake_actor import FakeActor, patch_ray_get
from support.sweeps.launches import RecordingListener, launch_of

POINTS = [PlannedTrial("0000", {"optimizer.lr": 0.1}), PlannedTrial("0001", {"optimizer.lr": 0.2})]
FINISHED = [Trial(point.id, point.params, state="finished", metrics={"val/accuracy": 0.5}) for point in POINTS]


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_ray_get(monkeypatch)
    monkeypatch.setattr(sweep_driver, "POLL_SECONDS", 0.001)


class FakeTune(Thread):
    """Ends by itself, with an error if it is given one; or, if it is to stay, once it is told to."""

    def __init__(self, error: Exception | None = None, stays: bool = False) -> None:
        super().__init__(daemon=True)
        self.error = error
        self.may_end = Event()
        if not stays:
            self.may_end.set()

    def run(self) -> None:
        self.may_end.wait(60)

    def finish_early(self) -> None:
        self.may_end.set()

    def leave(self, seconds: float) -> None:
        self.may_end.set()
        self.join(seconds)


class Scene:
    """A driver at a fake coordinator, which shows one view after the other, the last one again and again."""

    def __init__(self, folder: Path, views: list[Any], tune: FakeTune | None = None, **section: Any) -> None:
        self.views = views
        self.tune = tune or FakeTune()
        self.listener = RecordingListener()
        config = sweep_config(**{"metric": "val/accuracy", **section})
        self.launch = launch_of(config, folder, POINTS, self.listener)  # type: ignore[arg-type]
        self.statuses_at_close: list[str] = []
        self.coordinator = FakeActor(view=self._view, close=self._close, trials=FINISHED)
        self.groups = Mock(spec=WorkerGroupManager)
        costs = SweepCosts(folder, "core", None, None, allocated=float, spent=Spent, tells_joules=bool)
        self.driver = SweepDriver(self.launch, self.coordinator, self.groups, self.tune, costs)  # type: ignore[arg-type]

    def _view(self, *_: int) -> Any:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def _close(self, *_: Any) -> dict[str, str]:
        self.statuses_at_close.append(self.status)
        return {"error": "", "url": "", "run_id": ""}

    @property
    def status(self) -> str:
        """In the sweep's folder."""
        return str(self.launch.folder.read().get("status", ""))


def view(trials: list[Trial], **changes: Any) -> SweepView:
    return SweepView(trials, [], [], **changes)


def test_checkpoint_that_takes_long_is_waited_for(tmp_path: Path, golden: Any) -> None:
    saving = [view([], over="interrupted", busy=1)] * 50
    scene = Scene(tmp_path, [*saving, view(FINISHED, over="interrupted")])
    scene.driver.run()
    assert scene.coordinator.calls("close")
    assert len(scene.views) == 1
    assert scene.groups.follow.call_count > 40
    golden("\n".join(scene.listener.stages))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_sweep_is_recorded_loses_no_result(tmp_path: Path, number: signal.Signals) -> None:
    scene = Scene(tmp_path, [view(FINISHED)])
    scene.coordinator.answers["close"] = lambda *_: (os.kill(os.getpid(), number), scene._close())[1]
    closing = scene.driver.run()
    assert [trial.state for trial in closing.trials] == ["finished"] * 2
    assert "Ctrl-C" in scene.listener.stages[-1]


def test_records_that_mlflow_lacks_are_counted_while_the_end_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, left = Scene(tmp_path, [view(FINISHED)]), [1234, 1, 0]
    monkeypatch.setattr(ray, "wait", lambda refs, **_: ([], refs) if left else (refs, []))
    scene.coordinator.answers["records_left"] = lambda: left.pop(0)
    assert len(list(scene.driver.run().trials)) == 2
    assert [stage for stage in scene.listener.stages if "MLflow still lacks" in stage] == [
        "MLflow still lacks the records of 1,234 trials",
        "MLflow still lacks the records of 1 trial",
    ]


def test_trials_stop_when_tune_has_failed(tmp_path: Path) -> None:
    views = [view([]), view([], busy=1), view([], busy=1), view(FINISHED)]
    scene = Scene(tmp_path, views, FakeTune(ValueError("no")))
    closing = scene.driver.run()
    assert scene.coordinator.calls("end_early") == [["ValueError: no"]]
    names = [name for name, *_ in scene.coordinator.log]
    assert "view" in names[names.index("end_early") : names.index("close")]
    assert (closing.fault, scene.status) == ("ValueError: no", "interrupted")


def test_sweep_with_a_metric_that_no_trial_reports_is_over(tmp_path: Path, golden: Any) -> None:
    rules = SweepRules(objectives=(("val/acc", "max"),), slots=1, max_failures=0, fresh_processes=False)
    fault = rules.never_reported(FINISHED[0], [])
    scene = Scene(tmp_path, [view(FINISHED[:1], over=fault, fault=fault)], metric="train/acc", mode="max")
    closing = scene.driver.run()
    assert (closing.fault, scene.status) == (fault, "finished")  # so that the corrected config starts a new one
    with pytest.raises(RunFailed) as caught:
        _result(scene.launch, closing, 1.0)
    assert caught.value.code == "unknown-metric"
    golden(str(caught.value))


def test_sweep_whose_folder_is_removed_ends_early_with_an_error(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [view([]), view([], busy=1), view([]), view(FINISHED)])
    shutil.rmtree(scene.launch.folder.path)
    closing = scene.driver.run()
    assert scene.coordinator.calls("end_early")
    assert scene.coordinator.calls("close")[0][0] == "FAILED"
    with pytest.raises(EnvironmentFault) as caught:
        _result(scene.launch, closing, 1.0)
    assert (caught.value.code, caught.value.exit_code) == ("run-folder-removed", 3)
    assert caught.value.fields["folder"] == str(scene.launch.folder.path)
    assert not (scene.launch.folder.path / SweepFolder.FILE).exists()


class LostSweep(ClaimedRun[SweepFolder]):
    """A sweep that another machine has taken over."""

    lost = "run was taken over"

    def settle(self, tell: Any) -> None:
        tell("the record is not all in its store")


def test_a_sweep_that_was_taken_over_ends(tmp_path: Path) -> None:
    scene = Scene(
        tmp_path, [view([]), view([], busy=1), view(FINISHED, over="run was taken over")], FakeTune(stays=True)
    )
    claimed = scene.launch.claimed
    scene.driver._launch = launch = replace(scene.launch, claimed=LostSweep(claimed.folder, False, claimed._lock))
    assert scene.driver.run().fault == "run was taken over"
    assert scene.coordinator.calls("end_early")[0] == ["run was taken over"]
    with pytest.raises(LeaseLost) as caught:
        _settle(launch)
    assert caught.value.code == "lease-lost"
    assert scene.listener.warnings == ["record-not-stored"]


def test_full_disk_at_the_end_is_a_fault_and_the_sweep_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, [view(FINISHED)])
    monkeypatch.setattr(sweep_driver, "write_best", no_space)
    monkeypatch.setattr(SweepFolder, "write", no_space)
    scene.driver.run()
    with pytest.raises(EnvironmentFault):
        scene.launch.conclude("the best")
    assert scene.coordinator.calls("close")  # MLflow has it all the same
    assert scene.listener.warnings == ["best-config-not-written"]
    assert scene.status == "running"


@pytest.mark.parametrize(
    ("trials", "shown", "fault", "disk_full", "status"),
    [
        ([], {"over": "interrupted", "busy": 1}, "", "", "interrupted"),  # a checkpoint that never ends
        (FINISHED, {"over": "no GPU", "fault": "no GPU"}, "no GPU", "", "interrupted"),
        (FINISHED[:1], {"over": "full", "fault": "full", "disk_full": "full"}, "full", "full", "interrupted"),
        (FINISHED[:1], {"disk_full": "full"}, "", "full", "interrupted"),
        (FINISHED[:1], {"over": "interrupted", "disk_full": "full"}, "", "", "interrupted"),
        (FINISHED, {"disk_full": "full"}, "", "", "running"),  # there was room for all; `conclude` finishes it
    ],
)
def test_sweep_that_left_trials_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: Any, shown: Any, fault: str, disk_full: str, status: str
) -> None:
    monkeypatch.setattr(sweep_driver, "SAVE_SECONDS", 0.05)
    scene = Scene(tmp_path, [view(trials, **shown)])
    closing = scene.driver.run()
    assert (closing.fault, closing.disk_full) == (fault, disk_full)
    assert scene.status == status


def test_full_disk_of_tune_is_no_failure_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, [view([])], FakeTune(OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr(SweepFolder, "write", no_space)  # the same disk
    closing = scene.driver.run()
    assert closing.disk_full == closing.fault
    assert "No space left" in closing.disk_full
    assert scene.status == "running"  # a later launch finds that nobody is at work on it


@pytest.mark.parametrize("error", [RayActorError(), KeyboardInterrupt()])
def test_tune_ends_with_the_driver(tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    scene = Scene(tmp_path, [view([])], FakeTune(stays=True))
    monkeypatch.setattr(scene.listener, "trials", fail)
    with pytest.raises(type(error)):
        scene.driver.run()
    assert not scene.tune.is_alive()
    assert scene.status == "running"


def test_driver_asks_only_for_what_has_changed_and_finishes_once_the_record_is_closed(tmp_path: Path) -> None:
    first, second = FINISHED
    seen, later = ViewCursor(EventCursor("log", 1), 3), ViewCursor(EventCursor("log", 2), 5)
    scene = Scene(tmp_path, [view([second], cursor=seen), view([first], cursor=later), view([], cursor=later)])
    assert scene.driver.run().status == "finished"
    assert (scene.statuses_at_close, scene.status) == (["running"], "running")
    scene.launch.conclude("the best")
    assert scene.status == "finished"
    assert scene.launch.folder.read()["summary"] == "the best"
    assert [cursor for (cursor,) in scene.coordinator.calls("view")][:3] == [UNSEEN, seen, later]
    assert scene.launch.folder.best_config.exists()
