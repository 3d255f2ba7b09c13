"""A bench that writes down the result of each job, and answers those that an earlier launch has done from there.

What a study does next depends on the answers and on the time that they took, and on nothing else. So the same course
reaches the same place again in no time, and resumes from there.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paceline.bench.bench import Bench
from paceline.bench.job_log import Done, JobLog, digest_of, is_of
from paceline.bench.jobs import Answer, Job, StudyKind
from paceline.cluster.signals import raise_swallowed_interrupt
from paceline.errors import EnvironmentFault, RunFailed
from paceline.redaction import redact

LOSSES = 2
"""How often a job may end the study before it counts as failed."""
START_ANEW = "start again with --new"


class SpentTime:
    """Seconds since a study began, without those between its launches. They pass at the end of each job alone: what
    is decided between two jobs depends on nothing that could not be written down."""

    def __init__(self, began: float, now: Callable[[], float] = time.monotonic) -> None:
        """Args:
        began: when the command began, on the same clock as `now`.
        """
        self._began, self._now = began, now
        self._shown = 0.0

    def __call__(self) -> float:
        """Seconds at the end of the newest job."""
        return self._shown

    @property
    def exact(self) -> float:
        """Seconds by now."""
        return self._now() - self._began

    def pass_on(self) -> None:
        """A job has ended."""
        self._shown = self.exact

    def go_on_from(self, seconds: float) -> None:
        """An earlier launch has spent so much by the end of the job that is answered again."""
        self._began = self._now() - seconds
        self._shown = seconds


class ResumableBench:
    """Has another bench do the jobs, and keeps the answers."""

    def __init__(self, bench: Bench, log: JobLog, spent: SpentTime, study: StudyKind) -> None:
        self._bench, self._log, self._spent, self._study = bench, log, spent, study
        self._known = list(log.done)
        self._first: Job | None = None

    def do(self, job: Job) -> Answer:
        """Do a job, unless an earlier launch has.

        Raises:
            RunFailed: there are no workers any more.
            EnvironmentFault: what an earlier launch has done was another course, or was done on other hardware or with
                other code.
            KeyboardInterrupt: the user interrupts, and a library has caught that.
        """
        raise_swallowed_interrupt()
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
        self._spent.go_on_from(known.elapsed)
        return known.answer

    def _check_again(self, job: Job, before: Answer) -> None:
        """Refuse to continue on other hardware, or with other code or data, than the earlier launch has measured."""
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

    def _is_of_first(self, job: Job) -> bool:
        """Return True for jobs about the config of the first one alone: without it there is nothing to compare with,
        and it is tried again and again."""
        return self._first is None or is_of(job, self._first, self._study)

    def _done(self, job: Job, digest: str) -> Answer:
        """Its answer; where there is none, it is left for a later launch."""
        try:
            self._log.begin(digest)  # an interrupt while that is being written is not the fault of the job either
            return _without_secrets(self._bench.do(job))
        except RunFailed:  # the workers are gone
            with suppress(EnvironmentFault):
                self._log.lose()
            raise
        except BaseException:
            with suppress(EnvironmentFault):
                self._log.leave()
            raise


def _without_secrets(answer: Answer) -> Answer:
    """The answer with the messages of the user code as they may be stored."""
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
