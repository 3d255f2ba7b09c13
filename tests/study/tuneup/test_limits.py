"""Code that hangs in this very process, and is given up."""

from __future__ import annotations

import signal
import threading
import time
from math import inf
from typing import Any

import pytest

from paceline.study.tuneup.bench import LocalBench, base_of
from paceline.study.tuneup.jobs import Job, part_of
from paceline.study.tuneup.limits import LimitReached, raising_after
from support.toys import PointsTask, toy_config

LONG = 3600.0


class Stubborn(PointsTask):
    """Hangs, whatever is raised in it."""

    def forward(self, batch: Any) -> Any:
        for _ in range(2):
            try:
                time.sleep(LONG)
            except BaseException:
                continue
        return super().forward(batch)


class Waiting(PointsTask):
    """Waits for a lock that nobody gives back."""

    def forward(self, batch: Any) -> Any:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


class Panic(BaseException):
    """What libraries raise that are to be stopped by nothing, such as those written in Rust."""


class Panicking(PointsTask):
    """Raises what is no `Exception`."""

    def forward(self, batch: Any) -> Any:
        raise Panic("out of range")


class Interrupted(PointsTask):
    """Ctrl-C while it computes."""

    def forward(self, batch: Any) -> Any:
        raise KeyboardInterrupt


def test_a_job_that_raises_what_is_no_exception_has_failed_but_an_interrupt_ends_the_tune_up() -> None:
    config = toy_config(trainer__precision="32-true", scaling__num_workers=0)
    bench = LocalBench(base_of(config, None), config)
    panicking, interrupted = (
        config.with_overrides({"task": {"path": f"{__name__}:{kind.__name__}"}}) for kind in (Panicking, Interrupted)
    )
    answer = bench.do(Job("train", (part_of(panicking),), {"seconds": LONG}))
    assert (answer.kind, answer.problem) == ("error", "Panic: out of range")
    with pytest.raises(KeyboardInterrupt):
        bench.do(Job("train", (part_of(interrupted),), {"seconds": LONG}))


@pytest.mark.parametrize("kind", [Stubborn, Waiting])
def test_a_job_that_hangs_here_is_given_up_and_the_next_one_is_done(
    kind: type[PointsTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.study.tuneup.limits.AGAIN_SECONDS", 0.2)
    config = toy_config(trainer__precision="32-true", scaling__num_workers=0)
    bench = LocalBench(base_of(config, None), config)
    usual = Job("train", (part_of(config),), {"seconds": LONG}, limit_seconds=60.0)
    assert bench.do(usual).problem == ""  # what it imports is there now
    hanging = config.with_overrides({"task": {"path": f"{__name__}:{kind.__name__}"}})
    answer = bench.do(Job("train", (part_of(hanging),), {"seconds": LONG}, limit_seconds=1.0))
    assert answer.kind == "lost"
    assert answer.problem.startswith("it took more than 1 s, and was ended: ")
    assert bench.do(usual).problem == ""


class Talking(PointsTask):
    """Prints."""

    def forward(self, batch: Any) -> Any:
        print("a step", flush=True)
        return super().forward(batch)


def test_what_the_users_code_prints_does_not_come_between_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    config = toy_config(trainer__precision="32-true", scaling__num_workers=0)
    talking = config.with_overrides({"task": {"path": f"{__name__}:Talking"}})
    assert LocalBench(base_of(config, None), config).do(Job("train", (part_of(talking),), {"seconds": LONG})).values
    told = capsys.readouterr()
    assert "a step" in told.err
    assert told.out == ""


def test_what_ends_in_time_is_left_alone_and_so_are_the_alarms_of_others() -> None:
    gone_off: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: gone_off.append(number))
    others = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with raising_after(60.0):
            pass
        with raising_after(inf):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        time.sleep(0.6)
        assert gone_off == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)


def test_away_from_the_main_thread_there_is_no_limit() -> None:
    done: list[bool] = []

    def work() -> None:
        with raising_after(0.01):
            time.sleep(0.1)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
    with pytest.raises(LimitReached), raising_after(0.01):
        time.sleep(LONG)
