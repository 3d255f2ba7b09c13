"""A bench that logs the result of each job, and replays the results of an earlier launch.

The next job of a study depends only on the earlier answers and on the time that they took. So a new launch replays the
same jobs immediately, and resumes where the earlier launch ended.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from paceline.bench.bench import Bench, LazyBench
from paceline.bench.job_log import Done, JobLog, digest_of, is_of
from paceline.bench.jobs import START_ANEW, Answer, Job, StudyKind
from paceline.bench.study_folder import StudyFolder
from paceline.cluster.run_folder import folder_removed
from paceline.cluster.signals import raise_swallowed_interrupt
from paceline.errors import EnvironmentFault, RunFailed, first_line
from paceline.redaction import redact

FAULTS_OF_FOLDER = ("checkpoint-damaged", "checkpoint-lost")
"""Codes of errors of a job that say nothing about it: a checkpoint of the study could not be read or written."""
LOSSES = 2
"""Number of times that a job must end the study to count as failed."""


class SpentTime:
    """Seconds since a study began, without those between its launches. They advance only at the end of each job, so
    that decisions between two jobs depend only on logged values."""

    def __init__(self, began: float, now: Callable[[], float] = time.monotonic) -> None:
        """Args:
        began: start of the command, on the same clock as `now`.
        """
        self._began, self._now = began, now
        self._shown = 0.0

    def __call__(self) -> float:
        """Return the seconds at the end of the newest job."""
        return self._shown

    @property
    def exact(self) -> float:
        """Seconds until now."""
        return self._now() - self._began

    def pass_on(self) -> None:
        """Advance the time to now, at the end of a job."""
        self._shown = self.exact

    def resume_at(self, seconds: float) -> None:
        """Set the time to the seconds that an earlier launch had spent by the end of the job that is replayed."""
        self._began = self._now() - seconds
        self._shown = seconds


class ResumableBench:
    """Runs the jobs on another bench, and stores the answers."""

    def __init__(self, bench: Bench, log: JobLog, spent: SpentTime, study: StudyKind, folder: StudyFolder) -> None:
        self._bench, self._log, self._spent, self._study, self._folder = bench, log, spent, study, folder
        self._known = list(log.done)
        self._first: Job | None = None

    @contextmanager
    def moved(
        self, opened: Callable[[], AbstractContextManager[Bench]], warn: Callable[[str], object]
    ) -> Iterator[None]:
        """Run the jobs of the body on another bench, which is opened for the first whose answer is not known.

        Args:
            opened: opens it.
            warn: takes the message of an error while it is closed. Its answers are kept.
        """
        before, stack = self._bench, ExitStack()
        self._bench = LazyBench(lambda: stack.enter_context(opened()))
        try:
            yield
        finally:
            self._bench = before
            try:
                stack.__exit__(*sys.exc_info())
            except Exception as error:
                warn(redact(first_line(error)))

    def do(self, job: Job) -> Answer:
        """Run a job, unless an earlier launch has run it.

        Raises:
            RunFailed: the workers are gone.
            EnvironmentFault: the earlier launch ran other jobs, or ran on other hardware or with other code; or the
                study's folder is full, was removed, or has lost a checkpoint.
            KeyboardInterrupt: the user interrupts, and a library has caught that.
        """
        raise_swallowed_interrupt()
        self._require_folder()
        self._first = self._first or job
        digest = digest_of(job, self._study)
        if not self._known:
            return self._do(job, digest)
        known = self._known.pop(0)
        if known.digest != digest:
            raise EnvironmentFault(
                f"what an earlier launch has measured is of another version of Paceline: {START_ANEW}", "other-version"
            )
        if job.checks_again:
            self._check_again(job, known.answer)
        self._spent.resume_at(known.elapsed)
        return known.answer

    def _check_again(self, job: Job, before: Answer) -> None:
        """Raise an error if hardware, code or data differ from those that the earlier launch has measured."""
        now = self._bench.do(job)
        if now.problem:
            raise EnvironmentFault(
                f"the model and the data can no longer be built: {now.problem}", "baseline-failed", doing="build"
            )
        if differing := differences(before.values, now.values):
            told = ", ".join(differing)
            message = f"an earlier launch has measured something else here ({told}): {START_ANEW}"
            raise EnvironmentFault(message, self._study.code, differing=differing)

    def _do(self, job: Job, digest: str) -> Answer:
        if self._log.losses >= LOSSES and not self._is_of_first(job):
            answer = Answer(problem=f"the {self._study.noun} was ended by it {self._log.losses} times", kind="lost")
        else:
            answer = self._done(job, digest)
        self._spent.pass_on()
        self._log.finish(Done(digest, answer, self._spent()))
        return answer

    def _require_folder(self) -> None:
        if self._folder.is_removed:
            raise folder_removed(self._study.noun, self._folder.path)

    def _is_of_first(self, job: Job) -> bool:
        """Return True if the job is only about the config of the first job. Such a job is retried without limit, since
        the study has nothing to compare with if it fails."""
        return self._first is None or is_of(job, self._first, self._study)

    def _done(self, job: Job, digest: str) -> Answer:
        """Return the answer of the job; if it has none, leave the job to a later launch."""
        try:
            self._log.begin(digest)  # an interrupt during this write is not the job's fault either
            answer = _without_secrets(self._bench.do(job))
            self._refuse(answer, job)
            return answer
        except RunFailed:  # the workers are gone
            self._note(self._log.lose)
            raise
        except BaseException:
            self._note(self._log.leave)
            raise

    def _note(self, ending: Callable[[], None]) -> None:
        """Write how a job without an answer ended, unless the folder is gone: that would make it again."""
        if not self._folder.is_removed:
            with suppress(EnvironmentFault):
                ending()

    def _refuse(self, answer: Answer, job: Job) -> None:
        """Raise an error where a job failed because of the study's folder. That does not count as its result."""
        self._require_folder()
        if job.folder and answer.kind == "full_disk":
            message = (
                f"{job.folder} takes no checkpoint more (full, over its quota or read-only): free space, and the same "
                f"command continues the {self._study.noun}"
            )
            raise EnvironmentFault(message, "disk-full", folder=job.folder)
        if answer.code in FAULTS_OF_FOLDER:
            raise EnvironmentFault(answer.problem, answer.code)


def _without_secrets(answer: Answer) -> Answer:
    """Return the answer with secrets redacted from the messages of the user code."""
    warnings = [redact(each) for each in answer.values.get("warnings", ())]
    values = {**answer.values, "warnings": warnings} if warnings else answer.values
    return replace(answer, problem=redact(answer.problem), values=values)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the facts that have changed, for a message. Only user code that both have seen is compared: one process
    may have imported more than another."""
    code = before.get("code", {})
    changed = [f"{name} has changed" for name, each in now.get("code", {}).items() if code.get(name, each) != each]
    others = [key for key in now if key != "code" and now[key] != before.get(key)]
    return [*changed, *(f"{key} was {before.get(key)!r}, is {now[key]!r}" for key in others)]
