"""A tune-up that is interrupted at any place, and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import EnvironmentFault, RunFailed
from paceline.study.tuneup.bench import Bench
from paceline.study.tuneup.clock import Clock
from paceline.study.tuneup.job_log import FILE, Done, JobLog, digest_of
from paceline.study.tuneup.jobs import Answer, Job, part_of
from paceline.study.tuneup.measuring import Measuring
from paceline.study.tuneup.outcome import Findings
from paceline.study.tuneup.result import findings_json
from paceline.study.tuneup.resuming import ResumableBench, SpentTime
from support.toys import toy_config

from .played_bench import FACTS, PlayedBench, PlayedClock, Recording
from .test_measuring import accuracy, config, speed

BUDGET_SECONDS = 300.0


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


class Played:
    """Answers jobs as an uninterrupted tune-up had them answered, and dies at one of them."""

    def __init__(self, clock: PlayedClock, answers: list[Done], already: int, dies_at: int | None = None) -> None:
        self._clock, self._answers, self._dies_at = clock, answers, dies_at
        self._next = already
        self.asked: list[str] = []

    def do(self, job: Job) -> Answer:
        self.asked.append(job.kind)
        if job.kind == "look" and self._next > 0:
            return self._answers[0].answer  # the hardware is looked at again
        if self._next == self._dies_at:
            raise Killed
        done = self._answers[self._next]
        self._clock.now += done.elapsed - (self._answers[self._next - 1].elapsed if self._next else 0.0)
        self._next += 1
        assert job.kind == "look" or self._next > 1
        return done.answer


def launch(home: Path, bench: Bench, clock: PlayedClock) -> Findings:
    spent, log = SpentTime(clock.now, clock), JobLog(home)
    try:
        resumable = ResumableBench(bench, log, spent, is_apart=True)
        return Measuring(config(BUDGET_SECONDS), resumable, Clock(BUDGET_SECONDS, 0.0, spent), Recording()).run()
    finally:
        log.close()


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Findings, list[Done]]:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    bench.split_seconds, bench.training_seconds = 1.25, 1.5
    found = launch(tmp_path / "whole", bench, clock)
    return found, JobLog(tmp_path / "whole").done


def test_wherever_it_is_killed_it_comes_to_the_same_findings(
    tmp_path: Path, whole: tuple[Findings, list[Done]]
) -> None:
    found, done = whole
    assert len(done) > 30
    assert {arm.name: arm.verdict for arm in found.arms if arm.name == "faster"} == {"faster": "gain"}
    for place in range(len(done)):
        home, clock = tmp_path / f"killed-{place}", PlayedClock()
        with pytest.raises(Killed):
            launch(home, Played(clock, done, 0, dies_at=place), clock)
        clock.now += 1e6  # between two launches no time of the budget passes
        later = Played(clock, done, place)
        assert json.dumps(findings_json(launch(home, later, clock))) == json.dumps(findings_json(found))
        assert len(later.asked) == len(done) - place + (place > 0)
        assert len(JobLog(home).done) == len(done)


def test_a_torn_last_line_costs_one_job(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    found, done = whole
    clock = PlayedClock()
    with pytest.raises(Killed):
        launch(tmp_path / "torn", Played(clock, done, 0, dies_at=20), clock)
    lines = (tmp_path / "torn" / FILE).read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines[-3:]] == ["done", "begun", "left"]
    (tmp_path / "torn" / FILE).write_bytes(b"".join(lines[:-3]) + lines[-3][:40])
    again = launch(tmp_path / "torn", Played(clock, done, 19), clock)
    assert findings_json(again) == findings_json(found)


def test_other_hardware_is_refused(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    _, done = whole
    clock = PlayedClock()
    with pytest.raises(Killed):
        launch(tmp_path / "moved", Played(clock, done, 0, dies_at=9), clock)
    other = PlayedBench(clock, speed, accuracy)
    other.facts = replace(FACTS, cores=64)
    with pytest.raises(EnvironmentFault, match=r"cores was 1, is 64\): start anew with --new"):
        launch(tmp_path / "moved", other, clock)


def test_another_course_is_refused(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    _, done = whole
    clock, log = PlayedClock(), JobLog(tmp_path / "other")
    for each in done[:9]:
        log.begin(each.digest)
        log.finish(replace(each, digest="another") if each is done[5] else each)
    with pytest.raises(EnvironmentFault, match="another version of Paceline"):
        launch(tmp_path / "other", Played(clock, done, 9), clock)


class Ending:
    """Ends the process at a job of one kind, as often as it is asked to."""

    def __init__(self, ends: Callable[[], Exception | BaseException], kind: str) -> None:
        self._ends, self._kind, self.ended = ends, kind, 0

    def do(self, job: Job) -> Answer:
        if job.kind == self._kind:
            self.ended += 1
            raise self._ends()
        return Answer({"kind": job.kind})


def resumed(home: Path, bench: Bench, is_apart: bool, unclean: bool) -> list[Answer]:
    """A look and a split, on a bench of a launch of its own."""
    log, clock = JobLog(home), PlayedClock()
    resumable = ResumableBench(bench, log, SpentTime(0.0, clock), is_apart)
    parts = (part_of(toy_config()),)
    if unclean:  # as of a process that was killed: it writes down nothing any more
        log.leave = lambda: None  # type: ignore[method-assign]
    try:
        return [resumable.do(Job(kind, parts)) for kind in ("look", "split")]  # type: ignore[arg-type]
    finally:
        log.close()


def test_what_has_ended_this_process_twice_is_given_up(tmp_path: Path) -> None:
    bench = Ending(Killed, "split")
    for _ in range(2):
        with pytest.raises(Killed):
            resumed(tmp_path, bench, is_apart=False, unclean=True)
    _, split = resumed(tmp_path, bench, is_apart=False, unclean=True)
    assert (split.problem, split.kind) == ("the process that it was done in has died of it", "lost")
    assert bench.ended == 2


@pytest.mark.parametrize(
    ("ends", "is_apart", "unclean"),
    [
        (KeyboardInterrupt, False, False),  # Ctrl-C is no fault of the job's
        (lambda: RunFailed("the workers are gone"), True, False),
        (Killed, True, True),  # in a process of its own, a job cannot have killed this one
    ],
)
def test_what_was_left_for_other_reasons_is_begun_again(
    tmp_path: Path, ends: Callable[[], BaseException], is_apart: bool, unclean: bool
) -> None:
    bench = Ending(ends, "split")
    for times in range(1, 5):
        with pytest.raises((KeyboardInterrupt, RunFailed, Killed)):
            resumed(tmp_path, bench, is_apart, unclean)
        assert bench.ended == times


def test_where_mlflow_is_makes_no_other_job() -> None:
    def digest(**changes: Any) -> str:
        return digest_of(Job("look", (part_of(toy_config().with_overrides(changes)),)))

    assert digest() == digest(**{"tracking.uri": "http://127.0.0.1:1"}) == digest(**{"storage.path": "elsewhere"})
    assert digest() != digest(seed=5)
    assert digest() != digest(**{"tracking.git_diff": True})
