"""The coordinator that gives a tune-up's worker group its jobs, and jobs whose workers die."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from paceline.tuneups.coordinator import LOSSES, TuneupDesk
from paceline.tuneups.jobs import Answer, Job, gave_up

JOB = Job("look", ())


def played(scene: Callable[[TuneupDesk], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(asyncio.wait_for(scene(TuneupDesk(60.0)), 30))


async def entered(desk: TuneupDesk, worker: bytes = b"worker") -> int:
    return await desk.enter(0, 0, 0, worker) or 0


async def taken(desk: TuneupDesk, incarnation: int) -> Any:
    work = await desk.take(0, 0, incarnation)
    assert work is not None
    return work


@played
async def test_a_job_is_taken_done_and_answered_once(desk: TuneupDesk) -> None:
    incarnation = await entered(desk)
    asked = asyncio.create_task(desk.do(JOB))
    work = await taken(desk, incarnation)
    assert work.timeout_seconds == 60.0
    await desk.finish(work.number, Answer({"found": 1}))
    await desk.finish(work.number, Answer({"found": 2}))  # a rank that comes later
    assert (await asked).values == {"found": 1}


@played
async def test_a_job_that_loses_its_workers_is_done_again_but_not_for_ever(desk: TuneupDesk) -> None:
    asked, losses = asyncio.create_task(desk.do(JOB)), 0
    while not asked.done():
        incarnation = await entered(desk)
        work = asyncio.create_task(desk.take(0, 0, incarnation))
        await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            work.cancel()
        else:
            losses += 1  # and the workers die
    assert losses == LOSSES
    assert asked.result().kind == "lost"


@played
async def test_a_job_that_was_answered_is_not_done_again_when_its_workers_die_after_it(desk: TuneupDesk) -> None:
    numbers = []
    incarnation = await entered(desk)
    for _ in range(2):
        asked = asyncio.create_task(desk.do(JOB))
        work = await taken(desk, incarnation)
        numbers.append(work.number)
        await desk.finish(work.number, Answer({"found": 1}))
        await asked
        incarnation = await entered(desk, b"another worker")
    assert numbers == [1, 2]


@played
async def test_workers_of_an_earlier_group_get_no_job(desk: TuneupDesk) -> None:
    """Nor the answer to leave, which Ray Train would take for the end of the training."""
    waiting = asyncio.create_task(desk.take(0, 0, await entered(desk, b"first")))
    await asyncio.sleep(0)
    await desk.dismiss()
    assert desk.workers() == []
    incarnation = await entered(desk, b"second")
    assert desk.workers() == [b"second"]
    asked = asyncio.create_task(desk.do(JOB))
    work = await taken(desk, incarnation)
    assert not waiting.done()
    await desk.finish(work.number, Answer())
    await asked
    await desk.close()
    assert await waiting is None


@played
async def test_a_job_that_is_given_up_is_answered_and_new_workers_do_the_next_one(desk: TuneupDesk) -> None:
    hanging = asyncio.create_task(desk.do(JOB))
    await taken(desk, await entered(desk))
    given_up = gave_up(replace(JOB, limit_seconds=60.0))
    await desk.give_up(given_up)
    assert await hanging == given_up
    assert given_up.kind == "lost"
    asked = asyncio.create_task(desk.do(JOB))
    work = await taken(desk, await entered(desk, b"new worker"))  # the old one is ended
    await desk.finish(work.number, Answer({"found": 2}))
    assert (await asked).values == {"found": 2}
