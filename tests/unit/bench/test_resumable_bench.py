"""A bench that answers from its journal what an earlier launch has done, and jobs that end the study."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.bench import Bench, LazyBench
from paceline.bench.job_log import FILE, JobLog, digest_of
from paceline.bench.jobs import NO_ROOM, Answer, Job, part_of
from paceline.bench.resumable_bench import ResumableBench, SpentTime
from paceline.errors import EnvironmentFault, RunFailed
from support.bench.study import STUDY, study_folder
from support.refusals import refused
from support.toys import toy_config

LOOK = "duels:look"


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


def test_sections_that_may_differ_make_no_other_job() -> None:
    def digest(**changes: Any) -> str:
        return digest_of(Job(LOOK, (part_of(toy_config().with_overrides(changes)),)), STUDY)

    changes: dict[str, Any] = {
        "tracking.uri": "http://127.0.0.1:1",
        "tracking.offline": "allow",
        "storage": {"path": "elsewhere"},
        "sweep": {"space": {"optimizer.lr": [0.1, 0.2]}},
        "scale": {"seeds": 5},
    }
    assert set(changes) == set(STUDY.may_differ)
    assert {digest(**{key: value}) for key, value in changes.items()} == {digest()}
    assert digest() != digest(seed=5)
    assert digest() != digest(**{"tracking.git_diff": not toy_config().tracking.git_diff})


class EndingBench:
    """Ends the study at each duel."""

    def __init__(self, ends: Callable[[], BaseException]) -> None:
        self._ends, self.ended = ends, 0

    def do(self, job: Job) -> Answer:
        if job.name == "duel":
            self.ended += 1
            raise self._ends()
        return Answer({"kind": job.name})


def resumed(home: Path, bench: Bench, in_process: bool, is_killed: bool = False, lr: float = 0.07) -> Answer:
    """A look at the config and a duel of another one with it, in a launch of its own; the answer to the duel."""
    log = JobLog(home, in_process)
    resumable = ResumableBench(bench, log, SpentTime(0.0, lambda: 0.0), STUDY, study_folder(home))
    if is_killed:  # it writes nothing down any more
        log.leave = lambda: None  # type: ignore[method-assign]
    baseline, other = (part_of(toy_config(optimizer__lr=each)) for each in (0.05, lr))
    try:
        resumable.do(Job(LOOK, (baseline,), checks_again=True))
        return resumable.do(Job("duels:duel", (baseline, other)))
    finally:
        log.close()


def ended_group() -> RunFailed:
    return RunFailed("the worker group ended")


@pytest.mark.parametrize(("ends", "in_process"), [(Killed, True), (ended_group, False)])
def test_a_job_that_has_ended_the_study_twice_is_given_up(
    tmp_path: Path, ends: Callable[[], BaseException], in_process: bool
) -> None:
    bench = EndingBench(ends)
    for _ in range(2):
        with pytest.raises((Killed, RunFailed)):
            resumed(tmp_path, bench, in_process, is_killed=in_process)
    answer = resumed(tmp_path, bench, in_process)
    assert (answer.kind, bool(answer.problem)) == ("lost", True)
    assert bench.ended == 2


@pytest.mark.parametrize(
    ("ends", "in_process", "is_killed", "lr"),
    [
        (KeyboardInterrupt, True, False, 0.07),  # Ctrl-C is no fault of the job
        (KeyboardInterrupt, False, False, 0.07),
        (Killed, False, True, 0.07),  # in a process of its own, it cannot have killed this one
        (Killed, True, True, 0.05),  # without the baseline there is nothing to compare with
    ],
)
def test_a_job_that_was_left_for_other_reasons_is_begun_again(
    tmp_path: Path, ends: Callable[[], BaseException], in_process: bool, is_killed: bool, lr: float
) -> None:
    bench = EndingBench(ends)
    for times in range(1, 5):
        with pytest.raises((KeyboardInterrupt, Killed)):
            resumed(tmp_path, bench, in_process, is_killed, lr)
        assert bench.ended == times


def test_an_interrupt_while_a_job_is_journaled_as_begun_is_no_loss(
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
            resumed(tmp_path, EndingBench(KeyboardInterrupt), in_process=True)
    assert JobLog(tmp_path, in_process=True).losses == 0


class LeakingBench:
    """Its user code prints a secret."""

    def do(self, job: Job) -> Answer:
        if job.name == "look":
            return Answer(problem="cannot reach postgres://user:sesame@host/db", kind="error")
        return Answer({"warnings": ["postgres://user:sesame@host/db is slow"], "pairs": []})


def test_no_secret_of_the_users_code_is_journaled(tmp_path: Path) -> None:
    resumed(tmp_path, LeakingBench(), in_process=True)
    text = (tmp_path / FILE).read_text()
    assert "sesame" not in text
    assert text.count("@host/db") == 2


class CountingBench:
    """Answers each job alike, and keeps their names."""

    def __init__(self, **values: Any) -> None:
        self._values = values
        self.done: list[str] = []

    def do(self, job: Job) -> Answer:
        self.done.append(job.name)
        return Answer(self._values)


@pytest.mark.parametrize("cores", [2, 4])
def test_only_a_job_that_checks_again_is_done_again_and_its_answer_must_not_have_changed(
    tmp_path: Path, cores: int
) -> None:
    first, later = CountingBench(cores=2), CountingBench(cores=cores)
    before = resumed(tmp_path, first, in_process=False)
    if cores == 2:
        assert resumed(tmp_path, later, in_process=False) == before
    else:
        assert refused(EnvironmentFault, resumed, tmp_path, later, in_process=False).code == STUDY.code
    assert (first.done, later.done) == (["look", "duel"], ["look"])


class Failing:
    """Fails each job alike."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.jobs = answer, 0

    def do(self, job: Job) -> Answer:
        self.jobs += 1
        return self.answer


FULL = Answer(problem="OSError: No space left on device", kind="full_disk")
DAMAGED = Answer(problem="step-8 was removed", kind="error", code="checkpoint-damaged")
LOST = Answer(problem="step-8 could not be saved", kind="error", code="checkpoint-lost")


@pytest.mark.parametrize(
    ("answer", "code"), [(FULL, "disk-full"), (DAMAGED, "checkpoint-damaged"), (LOST, "checkpoint-lost")]
)
def test_a_job_that_the_folder_has_no_room_or_checkpoint_for_is_done_again(
    tmp_path: Path, answer: Answer, code: str
) -> None:
    job, failing = Job("duels:duel", (), folder=str(tmp_path)), Failing(answer)

    def launch(bench: Bench) -> Answer:
        with closing(JobLog(tmp_path, in_process=True)) as log:
            return ResumableBench(bench, log, SpentTime(0.0, lambda: 0.0), STUDY, study_folder(tmp_path)).do(job)

    for _ in range(3):
        assert refused(EnvironmentFault, launch, failing).code == code
    assert failing.jobs == 3
    assert launch(CountingBench()).problem == ""


def test_a_full_disk_of_the_users_is_the_result_of_a_job_that_has_no_folder(tmp_path: Path) -> None:
    with closing(JobLog(tmp_path, in_process=True)) as log:
        spent = SpentTime(0.0, lambda: 0.0)
        answer = ResumableBench(Failing(FULL), log, spent, STUDY, study_folder(tmp_path)).do(Job("duels:duel", ()))
    assert answer == FULL


@pytest.mark.parametrize(("is_within", "answer"), [(True, Answer()), (True, LOST), (True, FULL), (False, Answer())])
def test_a_study_ends_at_the_job_during_which_its_folder_was_removed(
    tmp_path: Path, is_within: bool, answer: Answer
) -> None:
    folder = study_folder(tmp_path / "study")

    class Removing(CountingBench):
        def do(self, job: Job) -> Answer:
            if is_within and job.options:
                shutil.rmtree(folder.path)
            super().do(job)
            return answer if job.options else Answer()

    bench = Removing()
    with closing(JobLog(folder.path, in_process=True)) as log:
        resumable = ResumableBench(bench, log, SpentTime(0.0, lambda: 0.0), STUDY, folder)
        resumable.do(Job("duels:duel", ()))
        if not is_within:
            shutil.rmtree(folder.path)
        fault = refused(EnvironmentFault, resumable.do, Job("duels:duel", (), {"number": 1}))
    assert fault.code == "run-folder-removed"
    assert (len(bench.done), folder.path.exists()) == (1 + is_within, False)


def test_the_journal_is_written_again_where_it_alone_was_removed(tmp_path: Path) -> None:
    folder, bench = study_folder(tmp_path), CountingBench()
    with closing(JobLog(tmp_path, in_process=True)) as log:
        resumable = ResumableBench(bench, log, SpentTime(0.0, lambda: 0.0), STUDY, folder)
        resumable.do(Job("duels:duel", (), {"number": 0}))
        (tmp_path / FILE).unlink()
        resumable.do(Job("duels:duel", (), {"number": 1}))
    with closing(JobLog(tmp_path, in_process=True)) as log:
        assert len(log.done) == 2


# Another bench for some of the jobs


class Answering:
    """Answers each job with the name of this bench."""

    def __init__(self, name: str) -> None:
        self.name, self.jobs = name, 0

    def do(self, job: Job) -> Answer:
        self.jobs += 1
        return Answer({"by": self.name})


def test_jobs_move_to_a_bench_that_is_opened_only_for_what_is_not_known(tmp_path: Path) -> None:
    first, second = Answering("first"), Answering("second")
    opened: list[Bench] = []

    def open_second() -> AbstractContextManager[Bench]:
        opened.append(second)
        return nullcontext(second)

    def launch(jobs: int) -> list[Any]:
        log = JobLog(tmp_path, in_process=True)
        resumable = ResumableBench(first, log, SpentTime(0.0, lambda: 0.0), STUDY, study_folder(tmp_path))
        answers = [resumable.do(Job("duels:duel", (), {"number": 0}))]
        with resumable.moved(open_second, pytest.fail):
            answers += [resumable.do(Job("duels:duel", (), {"number": number})) for number in range(1, jobs)]
        log.close()
        return [answer.values["by"] for answer in answers]

    assert launch(3) == ["first", "second", "second"]
    assert (first.jobs, second.jobs, len(opened)) == (1, 2, 1)
    assert launch(3) == ["first", "second", "second"]
    assert (first.jobs, second.jobs, len(opened)) == (1, 2, 1)
    assert launch(4) == ["first", "second", "second", "second"]
    assert (first.jobs, second.jobs, len(opened)) == (1, 3, 2)


def test_a_bench_that_cannot_be_closed_loses_no_answer(tmp_path: Path) -> None:
    @contextmanager
    def open_second() -> Iterator[Bench]:
        yield Answering("second")
        raise OSError("Ray did not end")

    warnings: list[str] = []
    log, spent = JobLog(tmp_path, True), SpentTime(0.0, lambda: 0.0)
    resumable = ResumableBench(Answering("first"), log, spent, STUDY, study_folder(tmp_path))
    answers = []
    with resumable.moved(open_second, warnings.append):
        answers.append(resumable.do(Job("duels:duel", (), {"number": 0})))
    answers.append(resumable.do(Job("duels:duel", (), {"number": 1})))
    assert [answer.values["by"] for answer in answers] == ["second", "first"]
    assert warnings == ["Ray did not end"]


def test_a_bench_without_room_answers_so_and_is_tried_again() -> None:
    tries: list[int] = []

    def open_lazily() -> Bench:
        tries.append(1)
        if len(tries) == 1:
            raise EnvironmentFault("too few cores", "too-few-cores")
        return Answering("late")

    bench = LazyBench(open_lazily)
    job = Job("duels:duel", ())
    refusal = bench.do(job)
    assert (refusal.kind, refusal.values, "too few cores" in refusal.problem) == (NO_ROOM, {}, True)
    assert bench.do(job).values == {"by": "late"}


@pytest.mark.parametrize(
    "error", [EnvironmentFault("no Ray", "ray-not-started"), TypeError("cannot pickle"), OSError(5)]
)
def test_a_lazy_bench_that_fails_otherwise_says_why(error: Exception) -> None:
    def fails() -> Bench:
        raise error

    answer = LazyBench(fails).do(Job("duels:duel", ()))
    assert (answer.kind, bool(answer.problem)) == ("error", True)


def test_a_lazy_bench_whose_workers_are_gone_answers_so() -> None:
    answer = LazyBench(lambda: EndingBench(ended_group)).do(Job("duels:duel", ()))
    assert (answer.kind, "the worker group ended" in answer.problem) == ("lost", True)
