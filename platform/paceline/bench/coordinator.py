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
"""How often a job may lose its workers before it counts as failed."""


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
        timeout_seconds: how long a collective operation of a job may take.
        """
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[NumberedJob] = deque()
        self._begun: NumberedJob | None = None
        """What the group is at work on."""
        self._losses = 0
        """How often the workers of that job have died."""
        self._answers: dict[int, Answer] = {}
        self._numbers = 0
        self._incarnation = 0
        self._closed = False
        self._workers: list[bytes] = []
        self._changed = asyncio.Condition()

    async def enter(self, slot: int, generation: int, rank: int, worker: bytes) -> int | None:
        """A worker process reports for work; returns the incarnation of its group, or None: it is to leave."""
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
        """The group was started again: its job is done again, or given up."""
        lost, self._begun = self._begun, None
        if lost is None or lost.number in self._answers:
            return
        self._losses += 1
        if self._losses >= LOSSES:
            self._answers[lost.number] = Answer(problem="its worker processes died", kind="lost")
        else:
            self._waiting.appendleft(lost)

    async def take(self, slot: int, generation: int, incarnation: int) -> NumberedJob | None:
        """The next job of the group; waits until there is one. None: it is to leave. Called by rank 0. A group that was
        ended, or started again, gets no answer: Ray Train would take its leave for the end of the training."""
        await self._until(lambda: self._closed or (incarnation == self._incarnation and bool(self._waiting)))
        if self._closed:
            return None
        self._begun = self._waiting.popleft()
        return self._begun

    async def finish(self, number: int, answer: Answer) -> None:
        """A job has been done; the first answer counts, and nothing of it is lost any more."""
        if number != self._numbers:
            return  # of a job that was answered before
        self._answers.setdefault(number, answer)
        if self._begun is not None and self._begun.number == number:
            self._begun = None
        await self._notify()

    async def do(self, job: Job) -> Answer:
        """Have a job done, and wait for its answer. Called by the driver, for one job at a time."""
        self._numbers += 1
        number, self._losses = self._numbers, 0
        self._waiting.append(NumberedJob(number, job, self._timeout_seconds))
        await self._notify()
        await self._until(lambda: number in self._answers)
        return self._answers.pop(number)

    async def give_up(self, answer: Answer) -> None:
        """Answer the job that is waited for, whose workers may hang in it and are going to be ended."""
        await self.finish(self._numbers, answer)

    async def dismiss(self) -> None:
        """The group has been ended between two jobs: none of its processes takes another one."""
        self._incarnation += 1
        self._workers = []
        await self._notify()

    async def close(self) -> None:
        """Let the group leave."""
        self._closed = True
        await self._notify()

    def workers(self) -> list[bytes]:
        """The pickled handles of the group's processes."""
        return self._workers

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)


def end_workers(coordinator: Any, timeout_seconds: float) -> bool:
    """End the group's processes; Ray Train starts others in their place. Returns whether there were any."""
    import ray

    workers: list[bytes] = []
    with suppress(ray.exceptions.RayError):
        workers = ray.get(coordinator.workers.remote(), timeout=timeout_seconds)
        for worker in workers:
            ray.kill(pickle.loads(worker))
    return bool(workers)


def kill_group(coordinator: Any, timeout_seconds: float) -> None:
    """End the group's processes, and the coordinator."""
    import ray

    try:
        end_workers(coordinator, timeout_seconds)
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(coordinator)
