"""Messages of rank 0 to a coordinator in another process, with Ray played by lists; and to a coordinator in its own
process."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError
from ray.train import PreemptionInfo

from paceline.cluster import metric_buffer, reporters
from paceline.cluster.reporters import ActorReporter, InProcessReporter, LaunchOver
from paceline.engine.checkpoint_files import CheckpointWriter, Snapshot
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.run_recorder import RunRecorder
from support.cluster.coordinators import no_space, open_coordinator, warnings_of
from support.tracking.recording import until

Answer = Callable[[], Any]


class FakeCoordinator:
    """An actor that answers each message when somebody waits for it; `answer` may raise, or take its time."""

    def __init__(self, answer: Answer = lambda: True) -> None:
        self.answer = answer
        self.disk_is_full = False
        self.patience = 0.0
        """A wait that is shorter than so many seconds times out."""
        self.taken: list[MetricReading] = []
        """What it has said to be safe."""
        self.events: list[Any] = []
        for name in ("metrics", "progress", "may_commit"):
            setattr(self, name, SimpleNamespace(remote=lambda *given, kind=name: (self, kind, given)))
        self.event = SimpleNamespace(remote=lambda kind, details: self.events.append((kind, details)))

    @property
    def steps(self) -> list[int]:
        return [reading.step for reading in self.taken]

    def get(self, kind: str, given: tuple[Any, ...], timeout: float | None) -> Any:
        if timeout is not None and timeout < self.patience:
            raise GetTimeoutError
        answer = self.answer()
        if kind != "metrics":
            return answer
        if answer and not self.disk_is_full:
            self.taken += given[-1]
        return answer and not self.disk_is_full


@pytest.fixture(autouse=True)
def _played_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_buffer, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(metric_buffer, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(ray, "get", lambda message, timeout=None: message[0].get(*message[1:], timeout))
    monkeypatch.setattr(ray, "wait", lambda messages, timeout: (messages, []))


@pytest.fixture
def reporter() -> Iterator[Callable[..., ActorReporter]]:
    """Makes reporters, and ends their threads."""
    made: list[ActorReporter] = []

    def make(*given: Any) -> ActorReporter:
        made.append(ActorReporter(*given))
        return made[-1]

    yield make
    for each in made:
        each.close(0)


Make = Callable[..., ActorReporter]


def raising(error: Exception) -> Answer:
    def answer() -> Any:
        raise error

    return answer


def test_a_checkpoint_waits_for_the_metrics_before_it(monkeypatch: pytest.MonkeyPatch, reporter: Make) -> None:
    monkeypatch.setattr(metric_buffer, "GATHER_SECONDS", 60.0)  # somebody waits, so that they go at once
    coordinator = FakeCoordinator()
    mine = reporter(coordinator)
    mine.metrics(1, {"a": 1})
    mine.metrics(2, {"a": 1})
    assert mine.recorded(5.0)
    assert coordinator.steps == [1, 2]
    mine.metrics(3, {"a": 1})
    assert mine.recorded(5.0)
    assert coordinator.steps == [1, 2, 3]
    assert mine.unrecorded() == []
    mine.metrics(7, {"a": 1.0})
    mine.close()  # and so does the end of training
    assert coordinator.steps == [1, 2, 3, 7]
    mine._buffer._thread.join(60)
    assert not mine._buffer._thread.is_alive()
    ActorReporter(None).close()  # one that has told nothing ends at once


def test_metrics_go_by_themselves_with_the_time_at_which_they_were_taken(
    monkeypatch: pytest.MonkeyPatch, reporter: Make
) -> None:
    monkeypatch.setattr(metric_buffer, "GATHER_SECONDS", 0.2)
    coordinator = FakeCoordinator()
    before = int(time.time() * 1000)
    reporter(coordinator).metrics(1, {"a": 1})
    after = time.time() * 1000
    until(lambda: coordinator.taken)
    assert before <= coordinator.taken[0].timestamp_ms <= after


def test_unanswered_metrics_are_kept_for_the_checkpoint_and_sent_again(reporter: Make) -> None:
    coordinator = FakeCoordinator(raising(ActorUnavailableError("busy", None)))
    mine = reporter(coordinator, ("0001", 2))
    mine.metrics(1, {"a": 0.5, "b": float("nan")})
    assert not mine.recorded(5.0)
    ((a, b),) = mine.unrecorded()
    assert (a["key"], a["value"], a["step"]) == ("a", 0.5, 1)
    assert (b["key"], b["value"]) == ("b", "nan")
    coordinator.answer = raising(GetTimeoutError())
    mine.metrics(2, {"a": 0.25})
    assert not mine.recorded(5.0)
    assert len(mine.unrecorded()) == 2
    coordinator.answer, coordinator.disk_is_full = lambda: True, True
    assert not mine.recorded(5.0)
    coordinator.disk_is_full = False
    until(lambda: coordinator.steps == [1, 2])
    assert mine.recorded(5.0)
    assert mine.unrecorded() == []


def test_a_coordinator_that_does_not_answer_is_waited_for_no_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch, reporter: Make
) -> None:
    monkeypatch.setattr(reporters, "MIN_ANSWER_SECONDS", 0.01)
    answered = threading.Event()
    coordinator = FakeCoordinator(lambda: answered.wait(60))
    coordinator.patience = 1.0
    mine = reporter(coordinator)
    mine.metrics(1, {"a": 1})
    assert not mine.recorded(0.1)
    assert not answered.is_set()
    assert len(mine.unrecorded()) == 1
    answered.set()
    assert mine.recorded(5.0)


def test_metrics_that_another_process_could_not_deliver_go_first(reporter: Make) -> None:
    away = reporter(FakeCoordinator(raising(GetTimeoutError())))
    away.metrics(3, {"a": 1.0})
    away.metrics(4, {"a": float("inf")})
    kept = away.unrecorded()
    away.close(0.1)
    coordinator = FakeCoordinator()
    mine = reporter(coordinator)
    mine.record_again(kept)
    mine.metrics(5, {"a": 2.0})
    assert mine.recorded(5.0)
    assert coordinator.steps == [3, 4, 5]
    assert [[reading.timestamp_ms] for reading in coordinator.taken[:2]] == [[each["timestamp_ms"]] for (each,) in kept]
    assert coordinator.taken[1].values == {"a": float("inf")}


def test_two_threads_at_once_lose_and_double_nothing(reporter: Make) -> None:
    tries = iter(range(10**9))
    coordinator = FakeCoordinator(lambda: next(tries) % 3 != 0)
    mine = reporter(coordinator)
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            mine._buffer.flush(1.0)

    thread = threading.Thread(target=save)
    thread.start()
    for step in range(1, 5001):
        mine.metrics(step, {"a": 1.0})
    done.set()
    thread.join()
    until(lambda: mine._buffer.flush(1.0))
    assert coordinator.steps == list(range(1, 5001))


@pytest.mark.parametrize("answer", [raising(ActorDiedError()), lambda: False], ids=["gone", "dismissed"])
def test_a_group_whose_launch_is_over_puts_no_checkpoint_in_place(
    tmp_path: Path, answer: Answer, reporter: Make
) -> None:
    mine = reporter(FakeCoordinator(answer))
    mine.metrics(1, {"a": 1.0})

    def before_commit() -> None:
        mine.recorded(1.0)

    writer = CheckpointWriter(tmp_path, 3, before_commit, lambda step, path: None, lambda step, error: None)
    writer.submit(Snapshot(4, {"model": {"weight": torch.zeros(1)}}, {}))
    with pytest.raises(LaunchOver):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_group_whose_coordinator_is_gone_stops_and_one_whose_coordinator_is_busy_does_not(reporter: Make) -> None:
    coordinator = FakeCoordinator(raising(ActorUnavailableError("busy", None)))
    mine = reporter(coordinator)
    mine.progress(1, 1.0)
    assert not mine.stop_requested()
    coordinator.answer = raising(ActorDiedError())
    mine.progress(2, 1.0)
    assert mine.stop_requested()


def test_a_notice_is_reported_once(monkeypatch: pytest.MonkeyPatch, reporter: Make) -> None:
    coordinator = FakeCoordinator()
    mine = reporter(coordinator)
    assert not mine.is_leaving()  # no worker of Ray Train
    info = PreemptionInfo(deadline_ms=int((time.time() + 100) * 1000), preempted_node_to_ranks={"node": [1, 2]})
    context = SimpleNamespace(preemption_context=SimpleNamespace(preemption_info=info))
    monkeypatch.setattr("ray.train.v2._internal.execution.context.get_train_context", lambda: context)
    assert mine.is_leaving()
    assert mine.is_leaving()
    monkeypatch.setattr(time, "time", lambda: info.deadline_ms / 1000 + 1000)  # type: ignore[operator]
    assert not mine.is_leaving()  # it has stayed
    (_, preemption), (_, warning) = coordinator.events
    assert preemption == {}
    assert warning["code"] == "preemption"


# In the process that trains


def test_in_process_metrics_are_shown_at_once_and_durable_when_a_checkpoint_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_buffer, "GATHER_SECONDS", 60.0)
    coordinator = open_coordinator(tmp_path)
    mine = InProcessReporter(coordinator, lambda: None)
    mine.metrics(1, {"train/loss": 0.5})
    assert coordinator.view().metrics == {"train/loss": 0.5}
    assert coordinator.history() == []
    assert mine.recorded(5.0)
    assert coordinator.history() == [("train/loss", 0.5, 1)]
    mine.close()


def test_in_process_a_full_disk_is_reported_once_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = open_coordinator(tmp_path)
    mine = InProcessReporter(coordinator, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "append", no_space)
        for step in range(1, 6):
            mine.metrics(step, {"train/loss": 1.0 / step})
            assert not mine.recorded(5.0)
        assert len(mine.unrecorded()) == 5
        assert warnings_of(coordinator) == ["not-written"]
    until(lambda: len(coordinator.history()) == 5)
    assert mine.recorded(5.0)
    mine.close()
