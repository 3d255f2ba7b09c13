"""Metrics that the coordinator could not take while training went on come with the final report, and dropped ones are
told."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.train.torch
import torch
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from paceline._compat.ray import TRAINING_ERRORS
from paceline.cluster import metric_buffer, train_on_ray, train_worker
from paceline.cluster.final_report import FinalReport, read_outcome
from paceline.cluster.metric_buffer import MetricBuffer
from paceline.cluster.reporters import InProcessReporter
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.train import _result, prepare_launch
from paceline.cluster.train_launch import TrainLaunch
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.run_recorder import RunRecorder, has_ended
from support.cluster.coordinators import Events, no_space, open_coordinator, tags_of, warnings_of
from support.cluster.local_runs import local_config
from support.golden import Golden
from support.toys import toy_config

ENDING = {
    "status": "finished",
    "stopped": False,
    "step": 3,
    "epoch": 1,
    "samples": 96,
    "metrics": {"train/loss": 0.25},
    "samples_per_second": 5.0,
    "peak_memory_bytes": 7,
    "checkpoint": "",
    "weights_sha256": "ab",
    "seconds": {},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_buffer, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(metric_buffer, "RETRY_SECONDS", 0.01)


@pytest.fixture
def coordinator(tmp_path: Path) -> RunCoordinator:
    return open_coordinator(tmp_path / "run")


class PlayedActor:
    """A coordinator that answers when somebody waits for it; its metrics do not get through while it is away."""

    def __init__(self, coordinator: RunCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator = coordinator
        self.sent: list[str] = []
        for kind in ("beat", "begin", "enter", "finish", "lose_group", "metrics"):
            setattr(self, kind, SimpleNamespace(remote=partial(self._send, kind)))
        context = SimpleNamespace(current_actor=None)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
        monkeypatch.setattr(ray, "get", self._get)

    def _send(self, kind: str, *given: Any) -> tuple[str, tuple[Any, ...]]:
        self.sent.append(kind)
        return kind, given

    def _get(self, message: tuple[str, tuple[Any, ...]], timeout: float | None = None) -> Any:
        kind, given = message
        if kind == "metrics":
            raise ActorUnavailableError("it is being started again", None)
        return getattr(self.coordinator, kind)(*given)


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_metrics_that_the_coordinator_was_away_for_come_with_the_final_report(
    coordinator: RunCoordinator, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    ending = ENDING if status == "finished" else {"status": "failed", "failure": {"reason": "no"}}

    def trains(worker_spec: Any, ranks: Any, reporter: Any) -> dict[str, Any]:
        for step in (1, 2, 3):
            reporter.metrics(step, {"train/loss": 1.0 / step})
        return dict(ending)

    monkeypatch.setattr(train_worker, "run_rank", trains)
    actor = PlayedActor(coordinator, monkeypatch)
    train_worker.train_on_worker({"coordinator": actor, "worker_spec": None, "silence_seconds": 60.0})
    assert "beat" in actor.sent
    assert "lose_group" not in actor.sent
    assert coordinator.history() == [("train/loss", 1.0 / step, step) for step in (1, 2, 3)]
    assert coordinator.outcome() == read_outcome(coordinator._folder) == ending
    assert coordinator.view().metrics == {"train/loss": 1.0 / 3}


def test_a_lost_connection_is_reported_without_a_traceback(
    coordinator: RunCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised all the same: Ray Train starts the group again."""

    def loses_its_peer(worker_spec: Any, ranks: Any, reporter: Any) -> dict[str, Any]:
        raise RuntimeError("[gloo] Connection closed by peer\nsecond line")

    logger = logging.getLogger(TRAINING_ERRORS)
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(train_worker, "run_rank", loses_its_peer)
    actor = PlayedActor(coordinator, monkeypatch)
    with pytest.raises(RuntimeError, match="gloo"):
        train_worker.train_on_worker({"coordinator": actor, "worker_spec": None, "silence_seconds": 60.0})
    assert "lose_group" in actor.sent
    assert "finish" not in actor.sent
    assert logger.disabled


def test_known_readings_count_once_and_the_report_of_another_rank_keeps_none_away(coordinator: RunCoordinator) -> None:
    failed = {"status": "failed", "failure": {"reason": "rank 1"}}
    readings = [MetricReading(step, step, {"train/loss": 1.0}) for step in (1, 2, 3)]
    coordinator.metrics(readings[:2])
    coordinator.finish(failed)
    for _ in range(2):  # a coordinator that dies before it answers is asked again
        coordinator.finish(FinalReport(ENDING, readings).message())
    assert [step for _, _, step in coordinator.history()] == [1, 2, 3]
    assert coordinator.outcome() == failed


def test_a_full_disk_at_the_end_is_reported(
    coordinator: RunCoordinator, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(RunRecorder, "append", no_space)
    coordinator.finish(FinalReport(ENDING, [MetricReading(1, 1, {"train/loss": 1.0})]).message())
    assert "unrecorded" in warnings_of(coordinator)
    golden("\n".join(details["message"] for _, details in coordinator.view().events))
    assert coordinator.outcome() == ENDING


# More than is kept


def test_dropped_readings_are_reported_once_counted_and_never_taken_for_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_buffer, "MOST_READINGS", 100)
    told: list[str] = []
    is_away = [True]
    mine = MetricBuffer(lambda readings: not is_away[0], lambda: told.append("full"))
    for step in range(250):
        mine.put(step, {"a": 1.0})
    assert [reading.step for reading in mine.unsafe()] == list(range(100))
    assert (mine.lost, told) == (150, ["full"])
    is_away[0] = False
    assert not mine.flush(5.0), "150 readings are in no journal"
    assert mine.unsafe() == []
    assert mine.flush(5.0)
    mine.put(250, {"a": 1.0})
    assert mine.flush(5.0)
    mine.close()


def test_the_watcher_and_mlflow_are_reported_how_many_readings_were_dropped(
    coordinator: RunCoordinator, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(metric_buffer, "MOST_READINGS", 10)
    reporter = InProcessReporter(coordinator, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(RunCoordinator, "record", lambda self, readings: False)
        for step in range(25):
            reporter.metrics(step, {"a": 1.0})
    assert warnings_of(coordinator) == ["readings-dropped"]
    coordinator.finish(reporter.final_report(dict(ENDING)))
    _, details = coordinator.view().events[-1]
    assert (details["code"], details["readings"]) == ("readings-dropped", 15)
    golden("\n".join(details["message"] for _, details in coordinator.view().events))
    assert tags_of(coordinator._folder)[metrics.NOT_RECORDED].startswith("15 ")
    assert len(coordinator.history()) == 10


# A coordinator that does not answer at all


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def launch(work: Path, events: Events) -> Iterator[TrainLaunch]:
    made = prepare_launch(local_config(), "continue", None, events)
    yield made
    made.run.release()


def raising(error: Exception) -> Callable[..., Any]:
    def silent(*_: Any, **__: Any) -> Any:
        raise error

    return silent


def closing_of(launch: TrainLaunch, hurry: threading.Event) -> dict[str, Any]:
    close = SimpleNamespace(remote=lambda *given, **named: None)
    return train_on_ray._close(launch, SimpleNamespace(close=close), ("FINISHED", None), 0.0, hurry)


@pytest.mark.parametrize("error", [GetTimeoutError("Get timed out"), ActorUnavailableError("away", None)])
def test_a_finished_training_gives_its_result_though_the_coordinator_does_not_answer(
    launch: TrainLaunch, events: Events, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    recorder = RunRecorder(launch.run.folder.tracking, launch.record)
    recorder.append([point for step in (1, 2) for point in MetricReading(step, step, {"train/loss": 0.5}).points()])
    monkeypatch.setattr(ray, "get", raising(error))
    monkeypatch.setattr(ray, "wait", lambda *given, **named: (["the answer"], []))
    closing = closing_of(launch, threading.Event())
    result = _result(launch, dict(ENDING), closing, 1.0)
    assert (result.status, result.weights_sha256, result.steps) == ("finished", "ab", 3)
    assert result.points == (("train/loss", 0.5, 1), ("train/loss", 0.5, 2))
    assert closing["report"]["unsent"] > 2
    ((_, warning),) = events.events
    assert (warning["code"], warning["place"]) == ("unsent", str(launch.run.folder.path))


def test_the_coordinator_gets_the_warnings_but_those_about_the_recording(
    launch: TrainLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in ("mlflow-offline", "machine-busy", "unsent"):
        launch.listener.event("warning", {"code": code, "message": "told"})
    given: list[Any] = []
    close = SimpleNamespace(remote=lambda *_, **named: given.append(named))
    monkeypatch.setattr(ray, "wait", lambda *given, **named: (["the answer"], []))
    monkeypatch.setattr(ray, "get", raising(GetTimeoutError("Get timed out")))
    train_on_ray._close(launch, SimpleNamespace(close=close), ("FINISHED", None), 0.0, threading.Event())
    assert given == [{"warnings": ("told [machine-busy]",)}]


@pytest.mark.parametrize("is_concluded", [True, False])
def test_the_result_comes_once_the_end_is_written_down_when_nobody_waits_for_mlflow(
    launch: TrainLaunch, events: Events, monkeypatch: pytest.MonkeyPatch, is_concluded: bool
) -> None:
    recorder = RunRecorder(launch.run.folder.tracking, launch.record)
    recorder.append(MetricReading(1, 1, {"train/loss": 0.5}).points())
    if is_concluded:
        recorder.conclude("FINISHED")
    looks: list[float] = []

    def wait(answers: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        if len(looks) == 3:
            recorder.conclude("FINISHED")
        looks.append(timeout)
        return [], answers

    monkeypatch.setattr(ray, "wait", wait)
    hurry = threading.Event()
    hurry.set()
    closing = closing_of(launch, hurry)
    assert len(looks) == (1 if is_concluded else 4)
    assert has_ended(launch.run.folder.tracking)
    result = _result(launch, dict(ENDING), closing, 1.0)
    assert (result.status, result.points) == ("finished", (("train/loss", 0.5, 1),))
    assert events.warnings == ["unsent"]


# Metrics in a checkpoint


class StopsAt(InProcessReporter):
    """Asks to stop at a step."""

    def __init__(self, coordinator: RunCoordinator, step: int | None = None) -> None:
        super().__init__(coordinator, lambda: None)
        self._stop_at, self._step = step, 0

    def metrics(self, step: int, values: Any) -> None:
        self._step = step
        super().metrics(step, values)

    def stop_requested(self) -> bool:
        return self._stop_at is not None and self._step >= self._stop_at


def train(run: Path, stop_at: int | None = None) -> RunCoordinator:
    coordinator = open_coordinator(run / "tracking")
    reporter = StopsAt(coordinator, stop_at)
    config = toy_config(trainer__log_every_n_steps=1, checkpoint={"every_n_steps": 3})
    build_trainer(config, DistContext.current(), reporter, run / "checkpoints").fit()
    reporter.close(0.1)
    return coordinator


@pytest.mark.parametrize("known", [0, 5])
def test_nothing_is_lost_when_the_coordinator_dies_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """The disk of the record takes points up to a step, as if the coordinator had died then; that of the checkpoints
    works."""
    monkeypatch.setattr(metric_buffer, "READINGS_PER_DELIVERY", 1)
    append = RunRecorder.append

    def fails(recorder: RunRecorder, points: Any) -> int:
        return no_space() if any(point.step > known for point in points) else append(recorder, points)

    run = tmp_path / "runs" / "toy" / "r1"
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "append", fails)
        before = train(run, stop_at=6)
        assert {step for _, _, step in before.history()} == set(range(1, known + 1))
        before.abandon()
    resumed = int(time.time() * 1000)
    coordinator = train(run)
    points = [point for point in coordinator._recorder.history() if point.key == "train/loss"]
    assert [point.step for point in points] == list(range(1, 13))
    assert [point.timestamp_ms < resumed for point in points] == [True] * 6 + [False] * 6
    whole = train(tmp_path / "runs" / "toy" / "r2")
    losses = [value for key, value, _ in whole.history() if key == "train/loss"]
    assert [point.value for point in points] == losses
