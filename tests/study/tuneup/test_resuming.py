"""A tune-up that is interrupted at any place, and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError, EnvironmentFault, RunFailed
from paceline.study.tuneup.bench import Bench
from paceline.study.tuneup.clock import Clock
from paceline.study.tuneup.folder import claim_tuneup
from paceline.study.tuneup.job_log import FILE, MAY_DIFFER, Done, JobLog, digest_of
from paceline.study.tuneup.jobs import Answer, Job, part_of
from paceline.study.tuneup.measuring import Measuring
from paceline.study.tuneup.outcome import Findings
from paceline.study.tuneup.result import findings_json
from paceline.study.tuneup.resuming import ResumableBench, SpentTime
from support.toys import toy_config

from .played_bench import FACTS, PlayedBench, PlayedClock, Recording
from .test_measuring import accuracy, config, speed

BUDGET_SECONDS = 300.0


class ExactClock(PlayedClock):
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
        assert digest_of(job) == done.digest, f"the course differs at job {self._next}"
        self._clock.now += done.elapsed - (self._answers[self._next - 1].elapsed if self._next else 0.0)
        self._next += 1
        return done.answer


def launch(home: Path, bench: Bench, clock: PlayedClock) -> Findings:
    spent, log = SpentTime(clock.now, clock), JobLog(home, in_process=False)
    try:
        resumable = ResumableBench(bench, log, spent)
        return Measuring(config(BUDGET_SECONDS), resumable, Clock(BUDGET_SECONDS, 0.0, spent), Recording()).run()
    finally:
        log.close()


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Findings, list[Done]]:
    clock = ExactClock()
    bench = PlayedBench(clock, speed, accuracy)
    bench.split_seconds, bench.training_seconds = 1.25, 1.5
    found = launch(tmp_path / "whole", bench, clock)
    return found, JobLog(tmp_path / "whole", in_process=False).done


def test_wherever_it_is_killed_it_comes_to_the_same_findings(
    tmp_path: Path, whole: tuple[Findings, list[Done]]
) -> None:
    found, done = whole
    assert len(done) > 30
    assert {arm.name: arm.verdict for arm in found.arms if arm.name == "faster"} == {"faster": "gain"}
    for place in {*range(0, len(done), 2), len(done) - 1}:
        home, clock = tmp_path / f"killed-{place}", ExactClock()
        with pytest.raises(Killed):
            launch(home, Played(clock, done, 0, dies_at=place), clock)
        clock.now += 1e6  # between two launches no time of the budget passes
        later = Played(clock, done, place)
        assert json.dumps(findings_json(launch(home, later, clock))) == json.dumps(findings_json(found))
        assert len(later.asked) == len(done) - place + (place > 0)
        assert len(JobLog(home, in_process=False).done) == len(done)


def test_a_torn_last_line_costs_one_job(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    found, done = whole
    clock = ExactClock()
    with pytest.raises(Killed):
        launch(tmp_path / "torn", Played(clock, done, 0, dies_at=20), clock)
    lines = (tmp_path / "torn" / FILE).read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines[-3:]] == ["done", "begun", "left"]
    (tmp_path / "torn" / FILE).write_bytes(b"".join(lines[:-3]) + lines[-3][:40])
    again = launch(tmp_path / "torn", Played(clock, done, 19), clock)
    assert findings_json(again) == findings_json(found)


def test_other_hardware_is_refused(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    _, done = whole
    clock = ExactClock()
    with pytest.raises(Killed):
        launch(tmp_path / "moved", Played(clock, done, 0, dies_at=9), clock)
    other = PlayedBench(clock, speed, accuracy)
    other.facts = replace(FACTS, cores=64)
    with pytest.raises(EnvironmentFault, match=r"cores was 1, is 64\): start anew with --new"):
        launch(tmp_path / "moved", other, clock)


@pytest.mark.parametrize(
    ("before", "now", "is_refused"),
    [
        ({"net": "a", "data": "a"}, {"net": "b", "data": "a"}, True),
        ({"net": "a"}, {"net": "a", "plots": "b"}, False),  # imported in a notebook meanwhile
        ({"net": "a", "plots": "b"}, {"net": "a"}, False),
    ],
)
def test_changed_code_is_refused(
    tmp_path: Path,
    whole: tuple[Findings, list[Done]],
    before: dict[str, str],
    now: dict[str, str],
    is_refused: bool,
) -> None:
    _, done = whole
    looked = replace(done[0], answer=Answer({**done[0].answer.values, "code": before}))
    clock = ExactClock()
    with pytest.raises(Killed):
        launch(tmp_path / "edited", Played(clock, [looked, *done[1:]], 0, dies_at=9), clock)
    later = Played(clock, [replace(looked, answer=Answer({**looked.answer.values, "code": now})), *done[1:]], 9)
    if is_refused:
        with pytest.raises(EnvironmentFault, match=r"something else here \(net has changed\): start anew with --new"):
            launch(tmp_path / "edited", later, clock)
    else:
        assert launch(tmp_path / "edited", later, clock).arms


def test_another_course_is_refused(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    _, done = whole
    clock, log = ExactClock(), JobLog(tmp_path / "other", in_process=False)
    for each in done[:9]:
        log.begin(each.digest)
        log.finish(replace(each, digest="another") if each is done[5] else each)
    with pytest.raises(EnvironmentFault, match="another version of Paceline"):
        launch(tmp_path / "other", Played(clock, done, 9), clock)


def test_a_journal_that_is_damaged_in_the_middle_is_refused(tmp_path: Path, whole: tuple[Findings, list[Done]]) -> None:
    _, done = whole
    clock, home = ExactClock(), tmp_path / "damaged"
    with pytest.raises(Killed):
        launch(home, Played(clock, done, 0, dies_at=9), clock)
    lines = (home / FILE).read_bytes().splitlines(keepends=True)
    for damaged in (lines[:4] + lines[5:], [*lines[:4], b"nonsense\n", *lines[5:]]):
        (home / FILE).write_bytes(b"".join(damaged))
        with pytest.raises(EnvironmentFault, match=r"jobs\.jsonl is damaged: entry 5 is missing; put it back"):
            launch(home, Played(clock, done, 9), clock)


def test_what_may_differ_makes_no_other_job() -> None:
    def digest(**changes: Any) -> str:
        return digest_of(Job("look", (part_of(toy_config().with_overrides(changes)),)))

    changes: dict[str, dict[str, Any]] = {
        "tracking.uri": {"tracking.uri": "http://127.0.0.1:1"},
        "tracking.offline": {"tracking.offline": "allow"},
        "storage": {"storage.path": "elsewhere"},
        "sweep": {"sweep": {"space": {"optimizer.lr": [0.1, 0.2]}}},
    }
    assert set(changes) == set(MAY_DIFFER)
    assert {digest(**each) for each in changes.values()} == {digest()}
    assert digest() != digest(seed=5)
    assert digest() != digest(**{"tracking.git_diff": not toy_config().tracking.git_diff})


# Jobs that end the tune-up


class Ending:
    """Ends the tune-up at duels, as often as it is asked for one."""

    def __init__(self, ends: Callable[[], BaseException]) -> None:
        self._ends, self.ended = ends, 0

    def do(self, job: Job) -> Answer:
        if job.kind == "duel":
            self.ended += 1
            raise self._ends()
        return Answer({"kind": job.kind})


def resumed(home: Path, bench: Bench, in_process: bool, unclean: bool = False, arm: int = 5) -> Answer:
    """A look at the baseline and a duel of one seed's arm with it, in a launch of its own; the answer to the duel."""
    log = JobLog(home, in_process)
    resumable = ResumableBench(bench, log, SpentTime(0.0, ExactClock()))
    if unclean:  # as of a process that was killed: it writes down nothing any more
        log.leave = lambda: None  # type: ignore[method-assign]
    baseline, other = (part_of(toy_config(optimizer__lr=lr)) for lr in (0.05, 0.01 * arm))
    try:
        resumable.do(Job("look", (baseline,)))
        return resumable.do(Job("duel", (baseline, other)))
    finally:
        log.close()


@pytest.mark.parametrize(
    ("ends", "in_process", "unclean"),
    [
        (Killed, True, True),  # it has killed the process that it was done in
        (lambda: RunFailed("the worker group ended"), False, False),
    ],
)
def test_a_technique_that_has_ended_the_tune_up_twice_is_given_up(
    tmp_path: Path, ends: Callable[[], BaseException], in_process: bool, unclean: bool
) -> None:
    bench = Ending(ends)
    for _ in range(2):
        with pytest.raises((Killed, RunFailed)):
            resumed(tmp_path, bench, in_process, unclean, arm=7)
    answer = resumed(tmp_path, bench, in_process, unclean, arm=7)
    assert (answer.problem, answer.kind) == ("the tune-up was ended by it 2 times", "lost")
    assert bench.ended == 2


@pytest.mark.parametrize(
    ("ends", "in_process", "unclean", "arm"),
    [
        (KeyboardInterrupt, True, False, 7),  # Ctrl-C is no fault of the technique's
        (KeyboardInterrupt, False, False, 7),
        (Killed, False, True, 7),  # in a process of its own, it cannot have killed this one
        (Killed, True, True, 5),  # without the baseline there is nothing to compare with
    ],
)
def test_what_was_left_for_other_reasons_is_begun_again(
    tmp_path: Path, ends: Callable[[], BaseException], in_process: bool, unclean: bool, arm: int
) -> None:
    bench = Ending(ends)
    for times in range(1, 5):
        with pytest.raises((KeyboardInterrupt, Killed)):
            resumed(tmp_path, bench, in_process, unclean, arm)
        assert bench.ended == times


def test_an_interrupt_while_a_job_is_written_down_as_begun_is_no_fault_of_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = JobLog.begin

    def interrupted(self: JobLog, digest: str) -> None:
        begin(self, digest)
        if self.done:  # the duel, not the look at the baseline
            raise KeyboardInterrupt

    monkeypatch.setattr(JobLog, "begin", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            resumed(tmp_path, Ending(KeyboardInterrupt), in_process=True, arm=7)
    assert JobLog(tmp_path, in_process=True).losses == 0


class Telling:
    """A bench whose user code tells a secret."""

    def do(self, job: Job) -> Answer:
        if job.kind == "look":
            return Answer(problem="cannot reach postgres://user:sesame@host/db", kind="error")
        return Answer({"warnings": ["postgres://user:sesame@host/db is slow"], "pairs": []})


def test_no_secret_of_the_users_code_is_kept(tmp_path: Path) -> None:
    resumed(tmp_path, Telling(), in_process=True)
    text = (tmp_path / FILE).read_text()
    assert "sesame" not in text
    assert "cannot reach postgres://" in text
    assert "is slow" in text


# The command's choice


@pytest.fixture(autouse=True)
def _ids_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the same second as well."""
    numbers = count()
    monkeypatch.setattr("paceline.cluster.identity.secrets.token_hex", lambda size: f"{next(numbers):06x}")


def claimed(home: Path, *, status: str | None = None, begun: bool = True, **options: Any) -> tuple[str, bool]:
    """Id of the tune-up that a command works on, and whether it is an earlier one; afterwards it has that status."""
    changes = options.pop("changes", {})
    found = claim_tuneup(toy_config().with_overrides(changes), home, **options)
    if begun:
        (found.folder.path / FILE).touch()
    if status is not None:
        found.folder.write(status=status)
    found.release()
    return found.folder.run_id, found.resumed


def test_an_unfinished_tune_up_is_gone_on_with_and_a_finished_or_failed_one_is_not(tmp_path: Path) -> None:
    first, resumed_first = claimed(tmp_path)  # killed: nobody has changed its status
    assert claimed(tmp_path, status="interrupted") == (first, True)
    assert claimed(tmp_path, must_resume=True) == (first, True)
    assert claimed(tmp_path, changes={"sweep": {"space": {"optimizer.lr": [0.1, 0.2]}}}) == (first, True)
    assert not resumed_first
    for status in ("finished", "failed"):
        before, _ = claimed(tmp_path, status=status)
        after, is_resumed = claimed(tmp_path)
        assert before != after
        assert not is_resumed
    newest, _ = claimed(tmp_path)
    other, is_resumed = claimed(tmp_path, anew=True, status="finished")
    assert other != newest
    assert not is_resumed
    with pytest.raises(ConfigError, match="there is no unfinished tune-up in"):
        claimed(tmp_path, must_resume=True)


@pytest.mark.parametrize("content", ['{"config": null}', '{"status": "running"}', "[]", "nonsense"])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    first, _ = claimed(tmp_path)
    (tmp_path / "toy" / first / "tuneup.json").write_text(content)
    with pytest.raises(EnvironmentFault, match=r"tuneup\.json is damaged: put it back from a copy"):
        claimed(tmp_path)


def test_another_config_is_refused_as_soon_as_something_was_measured(tmp_path: Path) -> None:
    first, _ = claimed(tmp_path, begun=False)
    second, is_resumed = claimed(tmp_path, changes={"tuneup": {"budget_seconds": 99}}, begun=True)
    assert first != second
    assert not is_resumed
    with pytest.raises(ConfigError, match=r"budget_seconds.*99.*or start anew with --new"):
        claimed(tmp_path, changes={"tuneup": {"budget_seconds": 50}})
    third, _ = claimed(tmp_path, changes={"tuneup": {"budget_seconds": 50}}, anew=True)
    assert third not in (first, second)
