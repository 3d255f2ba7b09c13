"""What the desk could not take while training went on comes with how it ended, and is told when it did not fit."""

import threading
from collections.abc import Mapping
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
from paceline.cluster.experiment import Launch, _conclude, prepare_launch
from paceline.cluster.last_words import LastWords
from paceline.cluster.listener import SilentListener
from paceline.cluster.outbox import Outbox
from paceline.cluster.reporters import DeskReporter
from paceline.config.loading import validate
from paceline.tracking import metrics
from paceline.tracking.points import Reading
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, has_ended

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
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "run", RunRecord("r", "n", "http://127.0.0.1:9", "e"))


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
def test_what_the_desk_was_away_for_is_recorded_when_it_hears_how_training_ended(
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


def test_what_it_has_already_counts_once_and_another_ranks_word_keeps_nothing_away(desk: Desk) -> None:
    failed = {"status": "failed", "failure": {"reason": "rank 1"}}
    readings = [Reading(step, step, {"train/loss": 1.0}) for step in (1, 2, 3)]
    desk.metrics(readings[:2])
    desk.finish(failed)
    for _ in range(2):  # a desk that dies before it answers is asked once more
        desk.finish(LastWords(ENDING, readings).message())
    assert [step for _, _, step in desk.history()] == [1, 2, 3]
    assert desk.outcome() == failed


def test_a_full_disk_at_the_end_is_told_with_the_cure(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(recorder: Recorder, points: Any) -> int:
        raise OSError("No space left on device")

    monkeypatch.setattr(Recorder, "append", full)
    desk.finish(LastWords(ENDING, [Reading(1, 1, {"train/loss": 1.0})]).message())
    assert "paceline sync" in str(desk.view(0).events)
    assert desk.outcome() == ENDING


def test_in_process_a_disk_that_has_room_again_at_the_end_gets_everything(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(recorder: Recorder, points: Any) -> int:
        raise OSError("No space left on device")

    reporter = DeskReporter(desk, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "append", full)
        reporter.metrics(1, {"train/loss": 1.0})
        message = reporter.last_words(dict(ENDING))
    desk.finish(message)
    assert desk.history() == [("train/loss", 1.0, 1)]


# More than is kept


def test_what_does_not_fit_is_told_once_counted_and_never_said_to_be_safe(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_READINGS", 100)
    told: list[str] = []
    is_away = [True]
    mine = Outbox(lambda readings: not is_away[0], lambda: told.append("full"))
    for step in range(250):
        mine.put(step, {"a": 1.0})
    assert (mine.lost, told) == (150, ["full"])
    is_away[0] = False
    assert not mine.flush(5.0), "150 readings are in no journal"
    assert mine.unsafe() == []
    assert mine.flush(5.0)
    mine.put(250, {"a": 1.0})
    assert mine.flush(5.0)
    mine.close()


def test_the_watcher_and_mlflow_are_told_how_many_readings_were_let_go(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_READINGS", 10)
    monkeypatch.setattr(Desk, "record", lambda self, readings: False)
    reporter = DeskReporter(desk, lambda: None)
    for step in range(25):
        reporter.metrics(step, {"a": 1.0})
    warnings = [details["message"] for kind, details in desk.view(0).events if kind == "warning"]
    assert len(warnings) == 1
    assert "metrics are let go from now on" in warnings[0]
    monkeypatch.undo()
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)
    desk.finish(reporter.last_words(dict(ENDING)))
    assert "15 readings of metrics were let go" in str(desk.view(0).events[1:])
    journal = (desk._folder / "journal.jsonl").read_text()
    assert f'"{metrics.NOT_RECORDED}":"15 readings' in journal
    assert len(desk.history()) == 10


# A desk that does not answer at all


class Events(SilentListener):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        self.told.append(f"{kind}: {details.get('message', '')}")


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    for variable in ("MLFLOW_TRACKING_URI", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "mlflow.db").touch()
    tree = {
        "name": "run",
        "model": {"name": "mlp"},
        "data": {"name": "synthetic", "global_batch_size": 32},
        "scaling": {"num_workers": 0, "use_gpu": False},
    }
    made = prepare_launch(validate(tree), "auto", False, None, Events())
    yield made
    made.run.release()


@pytest.mark.parametrize("error", [GetTimeoutError("Get timed out"), ActorUnavailableError("away", None)])
def test_training_that_is_over_gives_its_result_though_the_desk_does_not_answer(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    recorder = Recorder(launch.run.folder.tracking, launch.record)
    recorder.append([point for step in (1, 2) for point in Reading(step, step, {"train/loss": 0.5}).points()])

    def silent(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(ray, "get", silent)
    monkeypatch.setattr(ray, "wait", lambda *given, **named: (["the answer"], []))
    close = SimpleNamespace(remote=lambda *given: None)
    closing = on_ray._close(launch, SimpleNamespace(close=close), ("FINISHED", None), 0.0, threading.Event())
    result = _conclude(launch, dict(ENDING), closing, 1.0)
    assert (result.status, result.weights_sha256, result.steps) == ("finished", "ab", 3)
    assert result.points == (("train/loss", 0.5, 1), ("train/loss", 0.5, 2))
    assert closing["report"]["unsent"] > 2
    (told,) = launch.listener.told  # type: ignore[attr-defined]
    assert "MLflow does not have everything" in told
    assert "paceline sync" in told


@pytest.mark.parametrize("is_concluded", [True, False])
def test_who_does_not_want_to_wait_for_mlflow_gets_the_result_once_the_end_is_written_down(
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
    close = SimpleNamespace(remote=lambda *given: None)
    hurry = threading.Event()
    hurry.set()
    closing = on_ray._close(launch, SimpleNamespace(close=close), ("FINISHED", None), 0.0, hurry)
    assert len(looks) == (1 if is_concluded else 4)
    assert has_ended(launch.run.folder.tracking)
    result = _conclude(launch, dict(ENDING), closing, 1.0)
    assert (result.status, result.points) == ("finished", (("train/loss", 0.5, 1),))
    (told,) = launch.listener.told  # type: ignore[attr-defined]
    assert "the end was not waited for; `paceline sync" in told
