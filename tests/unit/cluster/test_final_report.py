"""Metrics that the desk could not take while training went on come with the final report, and dropped ones are told."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.train.torch
import torch
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from paceline.cluster import on_ray, outbox, worker
from paceline.cluster.desk import Desk, read_outcome
from paceline.cluster.experiment import _conclude, prepare_launch
from paceline.cluster.last_words import LastWords
from paceline.cluster.launch import Launch
from paceline.cluster.outbox import Outbox
from paceline.cluster.reporters import DeskReporter
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.tracking import metrics
from paceline.tracking.points import Reading
from paceline.tracking.recorder import Recorder, has_ended
from support.cluster.desks import Events, no_space, open_desk, tags_of, warnings_of
from support.cluster.local_runs import enter_folder, local_config
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
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.01)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return open_desk(tmp_path / "run")


class PlayedActor:
    """A desk that answers when somebody waits for it; its metrics do not get through while it is away."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk = desk
        for kind in ("enter", "begin", "metrics", "finish"):
            setattr(self, kind, SimpleNamespace(remote=lambda *given, kind=kind: (kind, given)))
        context = SimpleNamespace(current_actor=None)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
        monkeypatch.setattr(ray, "get", self._get)

    def _get(self, message: tuple[str, tuple[Any, ...]], timeout: float | None = None) -> Any:
        kind, given = message
        if kind == "metrics":
            raise ActorUnavailableError("it is being started again", None)
        return getattr(self.desk, kind)(*given)


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_metrics_that_the_desk_was_away_for_come_with_the_final_report(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    ending = ENDING if status == "finished" else {"status": "failed", "failure": {"reason": "no"}}

    def trains(assignment: Any, ranks: Any, reporter: Any) -> dict[str, Any]:
        for step in (1, 2, 3):
            reporter.metrics(step, {"train/loss": 1.0 / step})
        return dict(ending)

    monkeypatch.setattr(worker, "run_rank", trains)
    worker.train_on_worker({"desk": PlayedActor(desk, monkeypatch), "assignment": None})
    assert desk.history() == [("train/loss", 1.0 / step, step) for step in (1, 2, 3)]
    assert desk.outcome() == read_outcome(desk._folder) == ending
    assert desk.view(0).metrics == {"train/loss": 1.0 / 3}


def test_known_readings_count_once_and_the_report_of_another_rank_keeps_none_away(desk: Desk) -> None:
    failed = {"status": "failed", "failure": {"reason": "rank 1"}}
    readings = [Reading(step, step, {"train/loss": 1.0}) for step in (1, 2, 3)]
    desk.metrics(readings[:2])
    desk.finish(failed)
    for _ in range(2):  # a desk that dies before it answers is asked again
        desk.finish(LastWords(ENDING, readings).message())
    assert [step for _, _, step in desk.history()] == [1, 2, 3]
    assert desk.outcome() == failed


def test_a_full_disk_at_the_end_is_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(Recorder, "append", no_space)
    desk.finish(LastWords(ENDING, [Reading(1, 1, {"train/loss": 1.0})]).message())
    assert "unrecorded" in warnings_of(desk)
    golden("\n".join(details["message"] for _, details in desk.view(0).events))
    assert desk.outcome() == ENDING


# More than is kept


def test_dropped_readings_are_reported_once_counted_and_never_taken_for_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_READINGS", 100)
    told: list[str] = []
    is_away = [True]
    mine = Outbox(lambda readings: not is_away[0], lambda: told.append("full"))
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
    desk: Desk, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(outbox, "MOST_READINGS", 10)
    reporter = DeskReporter(desk, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(Desk, "record", lambda self, readings: False)
        for step in range(25):
            reporter.metrics(step, {"a": 1.0})
    assert warnings_of(desk) == ["readings-dropped"]
    desk.finish(reporter.last_words(dict(ENDING)))
    _, details = desk.view(0).events[-1]
    assert (details["code"], details["readings"]) == ("readings-dropped", 15)
    golden("\n".join(details["message"] for _, details in desk.view(0).events))
    assert tags_of(desk._folder)[metrics.NOT_RECORDED].startswith("15 ")
    assert len(desk.history()) == 10


# A desk that does not answer at all


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    enter_folder(tmp_path, monkeypatch)
    made = prepare_launch(local_config(), "continue", None, Events())
    yield made
    made.run.release()


def closing_of(launch: Launch, hurry: threading.Event) -> dict[str, Any]:
    close = SimpleNamespace(remote=lambda *given: None)
    return on_ray._close(launch, SimpleNamespace(close=close), ("FINISHED", None), 0.0, hurry)


@pytest.mark.parametrize("error", [GetTimeoutError("Get timed out"), ActorUnavailableError("away", None)])
def test_a_finished_training_gives_its_result_though_the_desk_does_not_answer(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    recorder = Recorder(launch.run.folder.tracking, launch.record)
    recorder.append([point for step in (1, 2) for point in Reading(step, step, {"train/loss": 0.5}).points()])

    def silent(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(ray, "get", silent)
    monkeypatch.setattr(ray, "wait", lambda *given, **named: (["the answer"], []))
    closing = closing_of(launch, threading.Event())
    result = _conclude(launch, dict(ENDING), closing, 1.0)
    assert (result.status, result.weights_sha256, result.steps) == ("finished", "ab", 3)
    assert result.points == (("train/loss", 0.5, 1), ("train/loss", 0.5, 2))
    assert closing["report"]["unsent"] > 2
    ((_, warning),) = launch.listener.events  # type: ignore[attr-defined]
    assert (warning["code"], warning["place"]) == ("unsent", str(launch.run.folder.path))


@pytest.mark.parametrize("is_concluded", [True, False])
def test_the_result_comes_once_the_end_is_written_down_when_nobody_waits_for_mlflow(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, is_concluded: bool
) -> None:
    recorder = Recorder(launch.run.folder.tracking, launch.record)
    recorder.append(Reading(1, 1, {"train/loss": 0.5}).points())
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
    result = _conclude(launch, dict(ENDING), closing, 1.0)
    assert (result.status, result.points) == ("finished", (("train/loss", 0.5, 1),))
    assert launch.listener.warnings == ["unsent"]  # type: ignore[attr-defined]


# Metrics in a checkpoint


class StopsAt(DeskReporter):
    """Asks to stop at a step."""

    def __init__(self, desk: Desk, step: int | None = None) -> None:
        super().__init__(desk, lambda: None)
        self._stop_at, self._step = step, 0

    def metrics(self, step: int, values: Any) -> None:
        self._step = step
        super().metrics(step, values)

    def stop_requested(self) -> bool:
        return self._stop_at is not None and self._step >= self._stop_at


def train(run: Path, stop_at: int | None = None) -> Desk:
    desk = open_desk(run / "tracking")
    reporter = StopsAt(desk, stop_at)
    config = toy_config(trainer__log_every_n_steps=1, checkpoint={"every_n_steps": 3})
    build_trainer(config, DistContext.current(), reporter, run / "checkpoints").fit()
    reporter.close(0.1)
    return desk


@pytest.mark.parametrize("known", [0, 5])
def test_nothing_is_lost_when_the_desk_dies_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """The disk of the record takes points up to a step, as if the desk had died then; that of the checkpoints works."""
    monkeypatch.setattr(outbox, "READINGS_PER_DELIVERY", 1)
    append = Recorder.append

    def fails(recorder: Recorder, points: Any) -> int:
        return no_space() if any(point.step > known for point in points) else append(recorder, points)

    run = tmp_path / "runs" / "toy" / "r1"
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "append", fails)
        before = train(run, stop_at=6)
        assert {step for _, _, step in before.history()} == set(range(1, known + 1))
        before.abandon()
    resumed = int(time.time() * 1000)
    desk = train(run)
    points = [point for point in desk._recorder.history() if point.key == "train/loss"]
    assert [point.step for point in points] == list(range(1, 13))
    assert [point.timestamp_ms < resumed for point in points] == [True] * 6 + [False] * 6
    whole = train(tmp_path / "runs" / "toy" / "r2")
    losses = [value for key, value, _ in whole.history() if key == "train/loss"]
    assert [point.value for point in points] == losses
