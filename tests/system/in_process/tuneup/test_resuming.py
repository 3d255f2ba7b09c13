"""A tune-up that is interrupted anywhere, and resumed."""

import json
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.job_log import FILE, Done, JobLog, digest_of
from paceline.bench.jobs import Answer, Job
from paceline.bench.resumable_bench import ResumableBench, SpentTime
from paceline.bench.study_launch import claim_study
from paceline.cluster.signals import terminating_interrupts
from paceline.errors import ConfigError, EnvironmentFault
from paceline.tuneups.course import TuneupCourse
from paceline.tuneups.folder import TUNEUP, TUNEUPS
from paceline.tuneups.outcome import Findings
from paceline.tuneups.stored_findings import findings_json
from support.bench.study import study_folder
from support.clock import FakeClock
from support.toys import toy_config
from support.tuneup.simulated_bench import (
    RecordingListener,
    SimulatedBench,
    planted_accuracy,
    planted_config,
    planted_speed,
)

BUDGET_SECONDS = 300.0


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hundreds of entries of a journal take seconds to reach the disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class ExactClock(FakeClock):
    """Its times are multiples of a power of two, whose sums and differences are exact in whatever order."""

    TICKS = 1024

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, seconds: float) -> None:
        self._now = round(seconds * self.TICKS) / self.TICKS


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


class ReplayedBench:
    """Answers jobs as in an uninterrupted tune-up, and dies at one of them."""

    def __init__(self, clock: FakeClock, answers: list[Done], already: int, dies_at: int | None = None) -> None:
        self._clock, self._answers, self._dies_at = clock, answers, dies_at
        self._next = already
        self.asked: list[str] = []

    def do(self, job: Job) -> Answer:
        self.asked.append(job.name)
        if job.name == "look" and self._next > 0:
            return self._answers[0].answer  # the hardware is looked at again
        if self._next == self._dies_at:
            raise Killed
        done = self._answers[self._next]
        assert digest_of(job, TUNEUP) == done.digest, f"the course differs at job {self._next}"
        self._clock.now += done.elapsed - (self._answers[self._next - 1].elapsed if self._next else 0.0)
        self._next += 1
        return done.answer


def launch(home: Path, bench: Bench, clock: FakeClock) -> Findings:
    spent, log = SpentTime(clock.now, clock), JobLog(home, in_process=False)
    try:
        resumable, budget = (
            ResumableBench(bench, log, spent, TUNEUP, study_folder(home)),
            Clock(BUDGET_SECONDS, 0.0, spent),
        )
        return TuneupCourse(planted_config(BUDGET_SECONDS), resumable, budget, RecordingListener()).run()
    finally:
        log.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, list[Done]]:
    """A tune-up that was not interrupted, and its jobs."""
    clock, home = ExactClock(), tmp_path_factory.mktemp("whole")
    bench = SimulatedBench(clock, planted_speed, planted_accuracy, split_seconds=1.25, training_seconds=1.5)
    found = launch(home, bench, clock)
    return found, JobLog(home, in_process=False).done


@pytest.fixture
def done(whole: tuple[Findings, list[Done]]) -> list[Done]:
    return whole[1]


def refusal(home: Path, done: list[Done], clock: FakeClock) -> EnvironmentFault:
    """The error of a launch that does not resume the one before."""
    with pytest.raises(EnvironmentFault) as caught:
        launch(home, ReplayedBench(clock, done, 9), clock)
    return caught.value


def killed(home: Path, done: list[Done], place: int = 9) -> ExactClock:
    """Launch a tune-up that dies at a job."""
    clock = ExactClock()
    with pytest.raises(Killed):
        launch(home, ReplayedBench(clock, done, 0, dies_at=place), clock)
    return clock


class DeafBench(ReplayedBench):
    """A library in its fourth job catches the user's interrupt."""

    def do(self, job: Job) -> Answer:
        if self._next == 3:
            with suppress(BaseException):
                signal.raise_signal(signal.SIGTERM)
        return super().do(job)


def test_an_interrupt_that_a_library_has_caught_ends_it_after_the_job(tmp_path: Path, done: list[Done]) -> None:
    clock = ExactClock()
    with pytest.raises(KeyboardInterrupt), terminating_interrupts():
        launch(tmp_path, DeafBench(clock, done, 0), clock)
    assert len(JobLog(tmp_path, in_process=False).done) == 4


@pytest.mark.parametrize("step", [30, pytest.param(4, marks=pytest.mark.slow)])
def test_wherever_it_is_killed_it_comes_to_the_same_findings(
    tmp_path: Path, whole: tuple[Findings, list[Done]], step: int
) -> None:
    found, done = whole
    assert len(done) > 30
    assert next(technique.verdict for technique in found.techniques if technique.name == "faster") == "gain"
    for place in {0, 1, *range(2, len(done) - 1, step), len(done) - 1}:
        home = tmp_path / f"killed-{place}"
        clock = killed(home, done, place)
        clock.now += 1e6  # no time of the budget passes between two launches
        later = ReplayedBench(clock, done, place)
        assert json.dumps(findings_json(launch(home, later, clock))) == json.dumps(findings_json(found))
        assert len(later.asked) == len(done) - place + (place > 0)
        assert len(JobLog(home, in_process=False).done) == len(done)


def test_a_torn_last_line_costs_one_job(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    found, done = whole
    clock = killed(tmp_path, done, 20)
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines[-3:]] == ["done", "begun", "left"]
    (tmp_path / FILE).write_bytes(b"".join(lines[:-3]) + lines[-3][:40])
    assert findings_json(launch(tmp_path, ReplayedBench(clock, done, 19), clock)) == findings_json(found)


CODE = {"code": {"net": "a", "data": "a"}}


@pytest.mark.parametrize(
    ("now", "differing"),
    [
        ({"code": {"net": "b", "data": "a"}}, "net "),
        ({"cores": 64, **CODE}, "cores "),
        ({"code": {"net": "a", "data": "a", "plots": "b"}}, ""),  # imported in a notebook meanwhile
        ({"code": {"net": "a"}}, ""),
    ],
)
def test_changed_code_and_other_hardware_are_refused(
    tmp_path: Path, done: list[Done], now: dict[str, Any], differing: str
) -> None:
    def looked(changes: dict[str, Any]) -> list[Done]:
        return [replace(done[0], answer=Answer({**done[0].answer.values, **changes})), *done[1:]]

    clock = killed(tmp_path, looked(CODE))
    if not differing:
        assert launch(tmp_path, ReplayedBench(clock, looked(now), 9), clock).techniques
        return
    error = refusal(tmp_path, looked(now), clock)
    assert error.code == "tuneup-changed"
    (found,) = error.fields["differing"]  # type: ignore[misc]
    assert found.startswith(differing)


def test_another_course_is_refused(tmp_path: Path, done: list[Done]) -> None:
    log = JobLog(tmp_path, in_process=False)
    for each in done[:9]:
        log.begin(each.digest)
        log.finish(replace(each, digest="another") if each is done[5] else each)
    assert refusal(tmp_path, done, ExactClock()).code == "other-version"


@pytest.mark.parametrize("put", [b"", b"nonsense\n"], ids=["missing", "damaged"])
def test_a_journal_that_is_damaged_in_the_middle_is_refused(tmp_path: Path, done: list[Done], put: bytes) -> None:
    clock = killed(tmp_path, done)
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(b"".join([*lines[:4], put, *lines[5:]]))
    error = refusal(tmp_path, done, clock)
    assert (error.code, error.fields) == ("file-damaged", {"path": tmp_path / FILE, "entry": 5})


# The tune-up that a command works on


def claimed(home: Path, *, status: str | None = None, begun: bool = True, **options: Any) -> tuple[str, bool]:
    """Claim a tune-up and give it a status; returns its id, and whether it is an earlier one."""
    changes = options.pop("changes", {})
    found = claim_study(TUNEUPS, toy_config().with_overrides(changes), home, **options)
    if begun:
        (found.folder.path / FILE).touch()
    if status is not None:
        found.folder.write(status=status)
    found.release()
    return found.folder.run_id, found.resumed


def test_an_unfinished_tune_up_is_resumed_and_a_finished_or_failed_one_is_not(tmp_path: Path) -> None:
    first, is_resumed = claimed(tmp_path)  # killed: nobody has changed its status
    assert not is_resumed
    assert claimed(tmp_path, status="interrupted") == (first, True)
    assert claimed(tmp_path, intent="resume") == (first, True)
    assert claimed(tmp_path, changes={"sweep": {"space": {"optimizer.lr": [0.1, 0.2]}}}) == (first, True)
    for status in ("finished", "failed"):
        before, _ = claimed(tmp_path, status=status)
        after, is_resumed = claimed(tmp_path)
        assert (before != after, is_resumed) == (True, False)
    newest, _ = claimed(tmp_path)
    other, is_resumed = claimed(tmp_path, intent="new", status="finished")
    assert (other != newest, is_resumed) == (True, False)
    with pytest.raises(ConfigError) as caught:
        claimed(tmp_path, intent="resume")
    assert [problem.code for problem in caught.value.problems] == ["resume"]


@pytest.mark.parametrize("content", ['{"status": "running"}', "nonsense"])
def test_a_damaged_status_file_is_named(tmp_path: Path, content: str) -> None:
    first, _ = claimed(tmp_path)
    file = tmp_path / "toy" / first / "tuneup.json"
    file.write_text(content)
    with pytest.raises(EnvironmentFault) as caught:
        claimed(tmp_path)
    assert str(file) in str(caught.value)


def test_another_config_is_refused_as_soon_as_something_was_measured(tmp_path: Path) -> None:
    first, _ = claimed(tmp_path, begun=False)
    second, is_resumed = claimed(tmp_path, changes={"tuneup": {"budget_seconds": 99}}, begun=True)
    assert (first != second, is_resumed) == (True, False)
    with pytest.raises(ConfigError) as caught:
        claimed(tmp_path, changes={"tuneup": {"budget_seconds": 50}})
    assert "tuneup.budget_seconds" in str(caught.value)
    third, _ = claimed(tmp_path, changes={"tuneup": {"budget_seconds": 50}}, intent="new")
    assert third not in (first, second)
