"""The coordinator that gives a bench's worker group its jobs, and jobs whose workers die."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from paceline.bench.coordinator import LOSSES, JobCoordinator
from paceline.bench.jobs import TOO_SLOW, Answer, Job, gave_up
from support.bench.study import STUDY

JOB = Job("module:function", ())


def played(scene: Callable[[JobCoordinator], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(asyncio.wait_for(scene(JobCoordinator(60.0)), 30))


async def entered(coordinator: JobCoordinator, worker: bytes = b"worker") -> int:
    return await coordinator.enter(0, 0, 0, worker) or 0


async def taken(coordinator: JobCoordinator, incarnation: int) -> Any:
    work = await coordinator.take(0, 0, incarnation)
    assert work is not None
    return work


@played
async def test_a_job_is_taken_done_and_answered_once(coordinator: JobCoordinator) -> None:
    incarnation = await entered(coordinator)
    asked = asyncio.create_task(coordinator.do(JOB))
    work = await taken(coordinator, incarnation)
    assert work.timeout_seconds == 60.0
    await coordinator.finish(work.number, Answer({"found": 1}))
    await coordinator.finish(work.number, Answer({"found": 2}))  # a rank that comes later
    assert (await asked).values == {"found": 1}


@played
async def test_a_job_that_loses_its_workers_is_done_again_but_not_for_ever(coordinator: JobCoordinator) -> None:
    asked, losses = asyncio.create_task(coordinator.do(JOB)), 0
    while not asked.done():
        incarnation = await entered(coordinator)
        work = asyncio.create_task(coordinator.take(0, 0, incarnation))
        await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            work.cancel()
        else:
            losses += 1  # and the workers die
    assert losses == LOSSES
    assert asked.result().kind == "lost"


@played
async def test_a_job_that_was_answered_is_not_done_again_when_its_workers_die_after_it(
    coordinator: JobCoordinator,
) -> None:
    numbers = []
    incarnation = await entered(coordinator)
    for _ in range(2):
        asked = asyncio.create_task(coordinator.do(JOB))
        work = await taken(coordinator, incarnation)
        numbers.append(work.number)
        await coordinator.finish(work.number, Answer({"found": 1}))
        await asked
        incarnation = await entered(coordinator, b"another worker")
    assert numbers == [1, 2]


@played
async def test_workers_of_an_earlier_group_get_no_job(coordinator: JobCoordinator) -> None:
    """Nor the answer to leave, which Ray Train would take for the end of the training."""
    waiting = asyncio.create_task(coordinator.take(0, 0, await entered(coordinator, b"first")))
    await asyncio.sleep(0)
    await coordinator.dismiss()
    assert coordinator.workers() == []
    incarnation = await entered(coordinator, b"second")
    assert coordinator.workers() == [b"second"]
    asked = asyncio.create_task(coordinator.do(JOB))
    work = await taken(coordinator, incarnation)
    assert not waiting.done()
    await coordinator.finish(work.number, Answer())
    await asked
    await coordinator.close()
    assert await waiting is None


@played
async def test_a_job_that_is_given_up_is_answered_and_new_workers_do_the_next_one(
    coordinator: JobCoordinator,
) -> None:
    hanging = asyncio.create_task(coordinator.do(JOB))
    await taken(coordinator, await entered(coordinator))
    given_up = gave_up(replace(JOB, limit_seconds=60.0), STUDY)
    await coordinator.give_up(given_up)
    assert await hanging == given_up
    assert given_up.kind == TOO_SLOW
    asked = asyncio.create_task(coordinator.do(JOB))
    work = await taken(coordinator, await entered(coordinator, b"new worker"))  # the old one is ended
    await coordinator.finish(work.number, Answer({"found": 2}))
    assert (await asked).values == {"found": 2}
