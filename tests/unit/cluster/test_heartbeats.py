"""Which rank of a group has stopped giving heartbeats."""

import threading
from pathlib import Path

import pytest

from paceline.cluster.heartbeats import BEATS, Heartbeat, Heartbeats, silence_failure, silence_warning
from paceline.cluster.worker_group import error_of
from paceline.errors import FAILED
from support.clock import FakeClock
from support.cluster.coordinators import open_coordinator, warnings_of
from support.golden import Golden

SECONDS = 60.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def beats(clock: FakeClock) -> Heartbeats:
    """Of two ranks, both just heard."""
    made = Heartbeats(SECONDS, clock)
    for rank in (0, 1):
        made.beat(rank, f"process {rank + 7} on host")
    return made


def test_a_rank_is_silent_after_a_while_and_named_once_until_it_is_heard_again(
    beats: Heartbeats, clock: FakeClock, golden: Golden
) -> None:
    clock.now += SECONDS
    assert beats.newly_silent() == beats.silent() == []
    beats.beat(0, "process 7 on host")
    clock.now += 1
    (silent,) = beats.newly_silent()
    golden(silence_warning(silent))
    assert (silent.rank, silent.place, silent.seconds) == (1, "process 8 on host", SECONDS + 1)
    assert beats.newly_silent() == []
    assert [each.rank for each in beats.silent()] == [1]
    beats.beat(1, "process 8 on host")
    assert beats.silent() == []
    clock.now += SECONDS + 1
    assert [each.rank for each in beats.newly_silent()] == [0, 1]


def test_a_thread_beats_until_it_is_stopped() -> None:
    heard: list[tuple[int, str]] = []
    enough = threading.Event()

    def report(rank: int, place: str) -> None:
        heard.append((rank, place))
        if len(heard) == 3:
            enough.set()

    heartbeat = Heartbeat(report, 5, silence_seconds=0.01 * BEATS)
    heartbeat.start()
    assert enough.wait(60)
    heartbeat.stop()
    heartbeat.join(60)
    assert not heartbeat.is_alive()
    assert {rank for rank, _ in heard} == {5}


def test_the_watcher_is_warned_while_training_continues(tmp_path: Path) -> None:
    coordinator = open_coordinator(tmp_path, silence_seconds=-1.0)  # everybody is overdue at once
    coordinator.beat(1, "process 8 on host")
    assert warnings_of(coordinator) == ["rank-silent"]
    assert warnings_of(coordinator) == ["rank-silent"], "once"
    assert [each.rank for each in coordinator.silent_ranks()] == [1]
    coordinator.enter(b"another group")
    assert coordinator.silent_ranks() == []
    coordinator.finish({"status": "finished", "step": 4})
    coordinator.beat(1, "process 8 on host")
    assert warnings_of(coordinator) == ["rank-silent"], "its worker is only leaving"


def test_a_lost_group_is_reported_once(tmp_path: Path, golden: Golden) -> None:
    coordinator = open_coordinator(tmp_path)
    for rank in (1, 0):
        coordinator.lose_group(rank, "[gloo] Connection closed by peer.")
    assert warnings_of(coordinator) == ["group-lost"]
    golden(coordinator.view().events[0][1]["message"])
    coordinator.enter(b"another group")
    coordinator.lose_group(0, "again")
    assert warnings_of(coordinator) == ["group-lost"] * 2
    coordinator.dismiss()
    coordinator.enter(b"a late one")
    coordinator.lose_group(0, "by being ended")
    assert warnings_of(coordinator) == ["group-lost"] * 2


def test_a_rank_that_was_silent_when_the_group_was_lost_is_the_reason(tmp_path: Path) -> None:
    """The others then leave, and are silent for a good reason."""
    coordinator = open_coordinator(tmp_path, silence_seconds=-1.0)
    coordinator.beat(1, "process 8 on host")
    coordinator.lose_group(0, "[gloo] Timed out")
    coordinator.beat(0, "process 7 on host")
    assert warnings_of(coordinator) == ["group-lost"]
    assert [each.rank for each in coordinator.silent_ranks()] == [1]
    coordinator.enter(b"another group")
    assert coordinator.silent_ranks() == []


def test_the_run_ends_with_the_ranks_that_were_waited_for(beats: Heartbeats, clock: FakeClock, golden: Golden) -> None:
    assert silence_failure(beats.silent()) is None
    clock.now += 300
    failure = silence_failure(beats.silent())
    assert failure is not None
    error = error_of(failure)
    assert (error.code, error.exit_code) == ("rank-silent", FAILED)
    assert failure["traceback_text"] == ""
    golden(str(error))
