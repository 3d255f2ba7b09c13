"""Rank 0's messages to a desk in another process, with Ray's part played by lists."""

import re
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

from paceline.cluster import outbox, reporters
from paceline.cluster.desk import Desk
from paceline.cluster.outbox import Outbox
from paceline.cluster.reporters import ActorReporter, DeskReporter, LaunchOver
from paceline.engine.checkpoint import CheckpointWriter, Snapshot
from paceline.tracking.points import Reading
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder

Answer = Callable[[], Any]


class FakeDesk:
    """An actor whose every message is answered when somebody waits for it; `answer` may raise, or take its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer = lambda: True) -> None:
        self.answer = answer
        self.disk_is_full = False
        self.taken: list[Reading] = []
        """What it has said to be safe."""
        self.events: list[Any] = []
        for name in ("metrics", "progress", "may_commit"):
            setattr(self, name, SimpleNamespace(remote=lambda *given, kind=name: (kind, given)))
        self.event = SimpleNamespace(remote=lambda kind, details: self.events.append((kind, details)))
        monkeypatch.setattr(ray, "get", self._get)
        monkeypatch.setattr(ray, "wait", lambda messages, timeout: (messages, []))

    @property
    def steps(self) -> list[int]:
        return [reading.step for reading in self.taken]

    def _get(self, message: tuple[str, tuple[Any, ...]], timeout: float | None = None) -> Any:
        kind, given = message
        answer = self.answer()
        if kind != "metrics":
            return answer
        if answer and not self.disk_is_full:
            self.taken += given[-1]
        return answer and not self.disk_is_full


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.02)


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


def raising(error: Exception) -> Answer:
    def answer() -> Any:
        raise error

    return answer


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_a_checkpoint_waits_for_the_metrics_before_it(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 60.0)  # somebody waits, so that they go at once
    desk = FakeDesk(monkeypatch)
    mine = reporter(desk)
    mine.metrics(1, {"a": 1})
    mine.metrics(2, {"a": 1})
    assert mine.recorded(5.0)
    assert desk.steps == [1, 2]
    mine.metrics(3, {"a": 1})
    assert mine.recorded(5.0)
    assert desk.steps == [1, 2, 3]
    assert mine.unrecorded() == []


def test_metrics_go_by_themselves_with_the_time_at_which_they_were_taken(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 0.2)
    desk = FakeDesk(monkeypatch)
    before = int(time.time() * 1000)
    reporter(desk).metrics(1, {"a": 1})
    after = time.time() * 1000
    until(lambda: desk.taken)
    assert before <= desk.taken[0].timestamp_ms <= after


def test_what_was_not_answered_is_kept_for_the_checkpoint_and_sent_again(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    desk = FakeDesk(monkeypatch, raising(ActorUnavailableError("busy", None)))
    mine = reporter(desk, ("0001", 2))
    mine.metrics(1, {"a": 0.5, "b": float("nan")})
    assert not mine.recorded(5.0)
    ((a, b),) = mine.unrecorded()
    assert (a["key"], a["value"], a["step"]) == ("a", 0.5, 1)
    assert (b["key"], b["value"]) == ("b", "nan")
    desk.answer = raising(GetTimeoutError())
    mine.metrics(2, {"a": 0.25})
    assert not mine.recorded(5.0)
    assert len(mine.unrecorded()) == 2
    desk.answer, desk.disk_is_full = lambda: True, True
    assert not mine.recorded(5.0)
    desk.disk_is_full = False
    until(lambda: desk.steps == [1, 2])
    assert mine.recorded(5.0)
    assert mine.unrecorded() == []


def test_a_desk_that_does_not_answer_is_waited_for_no_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    monkeypatch.setattr(reporters, "MIN_ANSWER_SECONDS", 0.01)
    answered = threading.Event()
    desk = FakeDesk(monkeypatch, lambda: answered.wait(10))
    monkeypatch.setattr(ray, "get", lambda message, timeout=None: timed(desk, message, timeout))
    mine = reporter(desk)
    mine.metrics(1, {"a": 1})
    began = time.monotonic()
    assert not mine.recorded(0.1)
    assert time.monotonic() - began < 5
    assert len(mine.unrecorded()) == 1
    answered.set()
    assert mine.recorded(5.0)


def timed(desk: FakeDesk, message: Any, timeout: float | None) -> Any:
    """`ray.get` of a desk that is slow: a wait with a limit fails."""
    if timeout is not None and timeout < 1:
        raise GetTimeoutError
    return desk._get(message)


def test_what_another_process_could_not_deliver_goes_first(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    away = reporter(FakeDesk(monkeypatch, raising(GetTimeoutError())))
    away.metrics(3, {"a": 1.0})
    away.metrics(4, {"a": float("inf")})
    kept = away.unrecorded()
    away.close(5.0)
    desk = FakeDesk(monkeypatch)
    mine = reporter(desk)
    mine.record_again(kept)
    mine.metrics(5, {"a": 2.0})
    assert mine.recorded(5.0)
    assert desk.steps == [3, 4, 5]
    assert [[reading.timestamp_ms] for reading in desk.taken[:2]] == [[each["timestamp_ms"]] for (each,) in kept]
    assert desk.taken[1].values == {"a": float("inf")}


def test_two_threads_at_once_lose_and_double_nothing(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    tries = iter(range(10**9))
    desk = FakeDesk(monkeypatch, lambda: next(tries) % 3 != 0)
    mine = reporter(desk)
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            mine._outbox.flush(1.0)

    thread = threading.Thread(target=save)
    thread.start()
    deadline = time.monotonic() + 1.0
    step = 0
    while time.monotonic() < deadline and step < 15_000:
        step += 1
        mine.metrics(step, {"a": 1.0})
    done.set()
    thread.join()
    until(lambda: mine._outbox.flush(1.0))
    assert desk.steps == list(range(1, step + 1))


def test_the_end_of_training_waits_for_the_last_metrics(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 60.0)
    desk = FakeDesk(monkeypatch)
    mine = reporter(desk)
    mine.metrics(7, {"a": 1.0})
    mine.close()
    assert desk.steps == [7]
    mine._outbox._thread.join(5.0)
    assert not mine._outbox._thread.is_alive()


def test_a_reporter_that_has_told_nothing_ends_at_once() -> None:
    ActorReporter(None).close()


def test_memory_stays_bounded_when_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_READINGS", 100)
    mine = Outbox(lambda readings: False)
    for step in range(1000):
        mine.put(step, {"a": 1.0})
    assert [reading.step for reading in mine.unsafe()] == list(range(100))
    mine.close()


@pytest.mark.parametrize("answer", [raising(ActorDiedError()), lambda: False], ids=["gone", "dismissed"])
def test_a_group_whose_launch_is_over_puts_no_checkpoint_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, reporter: Callable[..., ActorReporter]
) -> None:
    mine = reporter(FakeDesk(monkeypatch, answer))
    mine.metrics(1, {"a": 1.0})

    def before_commit() -> None:
        mine.recorded(1.0)

    writer = CheckpointWriter(tmp_path, 3, before_commit, lambda step, path: None, lambda step, error: None)
    writer.submit(Snapshot(4, {"model": {"weight": torch.zeros(1)}}, {}))
    with pytest.raises(LaunchOver):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_group_whose_desk_is_gone_stops_and_one_whose_desk_is_busy_does_not(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]
) -> None:
    desk = FakeDesk(monkeypatch, raising(ActorUnavailableError("busy", None)))
    mine = reporter(desk)
    mine.progress(1, 1.0)
    assert not mine.stop_requested()
    desk.answer = raising(ActorDiedError())
    mine.progress(2, 1.0)
    assert mine.stop_requested()


def test_a_notice_is_told_once(monkeypatch: pytest.MonkeyPatch, reporter: Callable[..., ActorReporter]) -> None:
    desk = FakeDesk(monkeypatch)
    mine = reporter(desk)
    assert not mine.is_leaving()  # no worker of Ray Train
    info = PreemptionInfo(deadline_ms=int((time.time() + 100) * 1000), preempted_node_to_ranks={"node": [1, 2]})
    context = SimpleNamespace(preemption_context=SimpleNamespace(preemption_info=info))
    monkeypatch.setattr("ray.train.v2._internal.execution.context.get_train_context", lambda: context)
    assert mine.is_leaving()
    assert mine.is_leaving()
    monkeypatch.setattr(time, "time", lambda: info.deadline_ms / 1000 + 1000)  # type: ignore[operator]
    assert not mine.is_leaving()  # it has stayed
    (_, preemption), (_, warning) = desk.events
    assert preemption == {}
    assert re.match("the machine of rank 1, 2 is taken away in (99|100) s", warning["message"])


# In the process that trains


def test_in_process_metrics_are_shown_at_once_and_durable_when_a_checkpoint_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 60.0)
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)
    desk = Desk(tmp_path, RunRecord("r", "n", "http://127.0.0.1:9", "e"))
    mine = DeskReporter(desk, lambda: None)
    mine.metrics(1, {"train/loss": 0.5})
    assert desk.view(0).metrics == {"train/loss": 0.5}
    assert desk.history() == []
    assert mine.recorded(5.0)
    assert desk.history() == [("train/loss", 0.5, 1)]
    mine.close()


def test_in_process_a_full_disk_is_told_once_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)
    desk = Desk(tmp_path, RunRecord("r", "n", "http://127.0.0.1:9", "e"))
    mine = DeskReporter(desk, lambda: None)
    with monkeypatch.context() as patch:

        def fails(recorder: Recorder, points: Any) -> int:
            raise OSError("No space left on device")

        patch.setattr(Recorder, "append", fails)
        for step in range(1, 6):
            mine.metrics(step, {"train/loss": 1.0 / step})
            assert not mine.recorded(5.0)
        assert len(mine.unrecorded()) == 5
        assert [kind for kind, _ in desk.view(0).events] == ["warning"]
    until(lambda: len(desk.history()) == 5)
    assert mine.recorded(5.0)
    mine.close()
