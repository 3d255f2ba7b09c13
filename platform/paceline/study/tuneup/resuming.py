"""A bench that writes down what came of each job, and answers those that an earlier launch has done from there.

What a tune-up does next depends on the answers and on the time that they took, and on nothing else. So the same course
comes to the same place again in no time, and goes on from there.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from paceline.errors import EnvironmentFault
from paceline.study.tuneup.bench import Bench
from paceline.study.tuneup.job_log import Done, JobLog, digest_of
from paceline.study.tuneup.jobs import Answer, Job

DEATHS = 2
"""How often a job may end the process that it is done in before it counts as failed."""
START_ANEW = "start anew with --new"


class SpentTime:
    """Seconds since a tune-up began, without those between its launches. They pass at the end of each job alone: what
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

    def __init__(self, bench: Bench, log: JobLog, spent: SpentTime, is_apart: bool) -> None:
        """Args:
        is_apart: whether the jobs are done in other processes than this one, so that none of them can end it.
        """
        self._bench, self._log, self._spent, self._is_apart = bench, log, spent, is_apart
        self._known = list(log.done)

    def do(self, job: Job) -> Answer:
        """Do a job, unless an earlier launch has.

        Raises:
            RunFailed: there are no workers any more.
            EnvironmentFault: what an earlier launch has done was another course, or was done on other hardware.
        """
        digest = digest_of(job)
        if not self._known:
            return self._do(job, digest)
        known = self._known.pop(0)
        if known.digest != digest:
            raise EnvironmentFault(
                "what an earlier launch has measured is of another version of Paceline or of the data: " + START_ANEW
            )
        if job.kind == "look":
            self._look_again(job, known.answer)
        self._spent.go_on_from(known.elapsed)
        return known.answer

    def _look_again(self, job: Job, before: Answer) -> None:
        """Whether the hardware, the model and the data are still what the earlier launch has measured."""
        now = self._bench.do(job)
        if now.problem:
            raise EnvironmentFault(f"the baseline can no longer be built: {now.problem}")
        differing = [key for key in now.values if now.values[key] != before.values.get(key)]
        if differing:
            told = ", ".join(f"{key} was {before.values.get(key)!r}, is {now.values[key]!r}" for key in differing)
            raise EnvironmentFault(f"an earlier launch has measured something else here ({told}): {START_ANEW}")

    def _do(self, job: Job, digest: str) -> Answer:
        if not self._is_apart and self._log.deaths >= DEATHS:
            answer = Answer(problem="the process that it was done in has died of it", kind="lost")
        else:
            self._log.begin(digest)
            answer = self._done(job)
        self._spent.pass_on()
        self._log.finish(Done(digest, answer, self._spent()))
        return answer

    def _done(self, job: Job) -> Answer:
        try:
            return self._bench.do(job)
        except BaseException:  # an interrupt, or workers that are gone: it is to be done by a later launch
            with suppress(EnvironmentFault):
                self._log.leave()
            raise
