"""Coordinator of a bench's worker group, and the loop in each of its processes."""

import asyncio
import pickle
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paceline.bench.jobs import Answer, Job, NumberedJob
from paceline.cluster.warm_worker import ask, serve
from paceline.engine.dist_context import DistContext

LOSSES = 2
"""Number of times that a job must lose its workers to count as failed."""


def serve_jobs(loop_config: dict[str, Any]) -> None:
    """Ray Train's training function: one call per worker process, for as many jobs as the coordinator has."""
    from paceline.bench.job_execution import do_job

    coordinator, base = loop_config["coordinator"], loop_config["base"]

    def run(work: NumberedJob, ranks: DistContext) -> None:
        answer = do_job(work.job, base, ranks)
        if ranks.is_first or answer.problem:
            ask(coordinator.finish.remote(work.number, answer))

    serve(loop_config, run)


class JobCoordinator:
    """Coordinator of jobs: the driver puts them, and the worker group takes them. An actor on the driver's node."""

    def __init__(self, timeout_seconds: float) -> None:
        """Args:
        timeout_seconds: timeout of a job's collective operations.
        """
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[NumberedJob] = deque()
        self._begun: NumberedJob | None = None
        """Job that the group is working on; None between jobs."""
        self._losses = 0
        """Number of times that the workers of the current job have died."""
        self._answers: dict[int, Answer] = {}
        self._numbers = 0
        self._incarnation = 0
        self._closed = False
        self._workers: list[bytes] = []
        self._changed = asyncio.Condition()

    async def enter(self, slot: int, generation: int, rank: int, worker: bytes) -> int | None:
        """Register a worker process. Return the incarnation of its group, or None if the process must exit."""
        if self._closed:
            return None
        if rank == 0:
            self._workers = []
            self._incarnation += 1
            self._take_back()
            await self._notify()
        self._workers.append(worker)
        return self._incarnation

    def _take_back(self) -> None:
        """Requeue the job of a group that was restarted, or give it up after too many losses."""
        lost, self._begun = self._begun, None
        if lost is None or lost.number in self._answers:
            return
        self._losses += 1
        if self._losses >= LOSSES:
            self._answers[lost.number] = Answer(problem="its worker processes died", kind="lost")
        else:
            self._waiting.appendleft(lost)

    async def take(self, slot: int, generation: int, incarnation: int) -> NumberedJob | None:
        """Wait for the next job of the group, and return it; None if the group must exit. Called by rank 0.

        A group that was ended or restarted gets no answer: Ray Train would take its exit for the end of the training.
        """
        await self._until(lambda: self._closed or (incarnation == self._incarnation and bool(self._waiting)))
        if self._closed:
            return None
        self._begun = self._waiting.popleft()
        return self._begun

    async def finish(self, number: int, answer: Answer) -> None:
        """Store the answer of a job; only the first answer counts."""
        if number != self._numbers:
            return  # from a job that was already answered
        self._answers.setdefault(number, answer)
        if self._begun is not None and self._begun.number == number:
            self._begun = None
        await self._notify()

    async def do(self, job: Job) -> Answer:
        """Queue a job, and wait for its answer. Called by the driver, for one job at a time."""
        self._numbers += 1
        number, self._losses = self._numbers, 0
        self._waiting.append(NumberedJob(number, job, self._timeout_seconds))
        await self._notify()
        await self._until(lambda: number in self._answers)
        return self._answers.pop(number)

    async def give_up(self, answer: Answer) -> None:
        """Answer the current job on behalf of its workers, which may hang in it and will be killed."""
        await self.finish(self._numbers, answer)

    async def dismiss(self) -> None:
        """Prevent the processes of a group that was ended between two jobs from taking another job."""
        self._incarnation += 1
        self._workers = []
        await self._notify()

    async def close(self) -> None:
        """Make the processes of the group exit."""
        self._closed = True
        await self._notify()

    def workers(self) -> list[bytes]:
        """Return the pickled handles of the group's processes."""
        return self._workers

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)


def end_workers(coordinator: Any, timeout_seconds: float) -> bool:
    """Kill the group's processes; Ray Train starts others in their place. Return True if there were any."""
    import ray

    workers: list[bytes] = []
    with suppress(ray.exceptions.RayError):
        workers = ray.get(coordinator.workers.remote(), timeout=timeout_seconds)
        for worker in workers:
            ray.kill(pickle.loads(worker))
    return bool(workers)


def kill_group(coordinator: Any, timeout_seconds: float) -> None:
    """Kill the group's processes, and the coordinator."""
    import ray

    try:
        end_workers(coordinator, timeout_seconds)
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(coordinator)
