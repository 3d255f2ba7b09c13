"""User code that hangs in this very process, and is given up."""

import signal
import threading
import time
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from paceline.bench.bench import LocalBench
from paceline.bench.jobs import TOO_SLOW, TRAIN, Answer, Job, part_of
from paceline.bench.limits import LimitReached, raising_after
from support.bench.study import STUDY
from support.toys import PointsTask, toy_config

LONG = 3600.0


class Stubborn(PointsTask):
    """Hangs, and ignores what is raised in it twice."""

    ignored = 0

    def forward(self, batch: Any) -> Any:
        while Stubborn.ignored < 2:
            try:
                time.sleep(LONG)
            except BaseException:
                Stubborn.ignored += 1
        return super().forward(batch)


class Waiting(PointsTask):
    """Waits for a lock that nobody gives back."""

    def forward(self, batch: Any) -> Any:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


class Panic(BaseException):
    """No `Exception`, as libraries raise that are written in Rust."""


class Panicking(PointsTask):
    def forward(self, batch: Any) -> Any:
        raise Panic("out of range")


class Interrupted(PointsTask):
    """Ctrl-C while it computes."""

    def forward(self, batch: Any) -> Any:
        raise KeyboardInterrupt


class Printing(PointsTask):
    def forward(self, batch: Any) -> Any:
        print("a step", flush=True)
        return super().forward(batch)


CONFIG = toy_config(trainer__precision="32-true", scaling__num_workers=0)


@pytest.fixture(scope="module")
def bench() -> LocalBench:
    return LocalBench(CONFIG, STUDY)


def trained(bench: LocalBench, task: type[PointsTask], limit_seconds: float = 60.0) -> Answer:
    config = CONFIG.with_overrides({"task": {"path": f"{task.__module__}:{task.__name__}"}})
    return bench.do(Job(TRAIN, (part_of(config),), {"seconds": LONG}, limit_seconds=limit_seconds))


def test_a_job_that_raises_no_exception_has_failed_but_an_interrupt_ends_the_study(bench: LocalBench) -> None:
    answer = trained(bench, Panicking)
    assert (answer.kind, answer.problem) == ("error", "Panic: out of range")
    with pytest.raises(KeyboardInterrupt):
        trained(bench, Interrupted)


@pytest.mark.parametrize("task", [Stubborn, Waiting])
def test_a_job_that_hangs_is_given_up_and_the_next_one_is_done(
    bench: LocalBench, task: type[PointsTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.bench.limits.AGAIN_SECONDS", 0.05)
    assert trained(bench, PointsTask).problem == ""  # everything that it imports is there now
    assert trained(bench, task, limit_seconds=0.3).kind == TOO_SLOW
    assert trained(bench, PointsTask).problem == ""


def test_prints_of_user_code_do_not_mix_with_the_result(bench: LocalBench, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(bench, Printing).values
    told = capsys.readouterr()
    assert "a step" in told.err
    assert told.out == ""


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """The alarms of somebody else that have gone off; one of them will soon."""
    gone_off: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: gone_off.append(number))
    others = signal.setitimer(signal.ITIMER_REAL, 0.1)
    yield gone_off
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *others)


def test_a_body_that_ends_in_time_leaves_the_alarms_of_others(alarms: list[int]) -> None:
    with raising_after(60.0):
        pass
    with raising_after(inf):
        assert alarms or signal.getitimer(signal.ITIMER_REAL)[0] > 0
    while not alarms:
        time.sleep(0.01)
    assert alarms == [signal.SIGALRM]


def test_away_from_the_main_thread_there_is_no_limit() -> None:
    done: list[bool] = []

    def work() -> None:
        with raising_after(0.01):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
    with pytest.raises(LimitReached), raising_after(0.01):
        time.sleep(LONG)
