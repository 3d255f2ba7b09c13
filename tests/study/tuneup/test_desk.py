"""The desk that gives a tune-up's worker group its jobs, and what becomes of jobs whose workers die."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from paceline.study.tuneup.jobs import Answer, Job, gave_up
from paceline.study.tuneup.serving import LOSSES, TuneupDesk

JOB = Job("look", ())


def test_a_job_is_taken_done_and_answered() -> None:
    async def play() -> Answer:
        desk = TuneupDesk(60.0)
        incarnation = await desk.enter(0, 0, 0, b"worker")
        asked = asyncio.create_task(desk.do(JOB))
        work = await desk.take(0, 0, incarnation or 0)
        assert work is not None
        assert work.timeout_seconds == 60.0
        await desk.finish(work.number, Answer({"found": 1}))
        await desk.finish(work.number, Answer({"found": 2}))  # a rank that comes later
        return await asked

    assert asyncio.run(play()).values == {"found": 1}


def test_a_job_that_loses_its_workers_is_done_again_but_not_for_ever() -> None:
    async def play() -> tuple[int, Answer]:
        desk = TuneupDesk(60.0)
        asked = asyncio.create_task(desk.do(JOB))
        taken = 0
        while True:
            incarnation = await desk.enter(0, 0, 0, b"worker")
            await asyncio.sleep(0)
            if asked.done():
                return taken, asked.result()
            work = asyncio.create_task(desk.take(0, 0, incarnation or 0))
            await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                work.cancel()
                return taken, asked.result()
            taken += 1  # and the workers die

    taken, answer = asyncio.run(play())
    assert taken == LOSSES
    assert answer.kind == "lost"
    assert "died" in answer.problem


def test_a_job_that_was_answered_is_not_done_again_when_its_workers_die_after_it() -> None:
    async def play() -> list[int]:
        desk = TuneupDesk(60.0)
        numbers = []
        incarnation = await desk.enter(0, 0, 0, b"worker")
        for _ in range(2):
            asked = asyncio.create_task(desk.do(JOB))
            work = await desk.take(0, 0, incarnation or 0)
            assert work is not None
            numbers.append(work.number)
            await desk.finish(work.number, Answer({"found": 1}))
            await asyncio.wait_for(asked, 10)
            incarnation = await desk.enter(0, 0, 0, b"another worker")
        return numbers

    assert asyncio.run(play()) == [1, 2]


def test_workers_of_an_earlier_group_get_nothing_and_leave() -> None:
    async def play() -> None:
        desk = TuneupDesk(60.0)
        first = await desk.enter(0, 0, 0, b"first")
        waiting = asyncio.create_task(desk.take(0, 0, first or 0))
        await asyncio.sleep(0)
        await desk.enter(0, 0, 0, b"second")
        assert await waiting is None
        assert desk.workers() == [b"second"]

    asyncio.run(play())


def test_a_closed_desk_lets_its_group_leave() -> None:
    async def play() -> None:
        desk = TuneupDesk(60.0)
        incarnation = await desk.enter(0, 0, 0, b"worker")
        waiting = asyncio.create_task(desk.take(0, 0, incarnation or 0))
        await asyncio.sleep(0)
        await desk.close()
        assert await waiting is None
        assert await desk.enter(0, 0, 0, b"late") is None

    asyncio.run(play())


def test_a_job_that_is_given_up_is_answered_and_its_workers_do_the_next_one_anew() -> None:
    async def play() -> tuple[Answer, Answer]:
        desk = TuneupDesk(60.0)
        incarnation = await desk.enter(0, 0, 0, b"worker")
        hanging = asyncio.create_task(desk.do(JOB))
        assert await desk.take(0, 0, incarnation or 0) is not None
        await desk.give_up(gave_up(replace(JOB, limit_seconds=60.0)))
        first = await hanging
        asked = asyncio.create_task(desk.do(JOB))
        incarnation = await desk.enter(0, 0, 0, b"new worker")  # the old one is ended
        work = await desk.take(0, 0, incarnation or 0)
        assert work is not None
        await desk.finish(work.number, Answer({"found": 2}))
        return first, await asked

    first, second = asyncio.run(play())
    assert (first.problem, first.kind) == (gave_up(replace(JOB, limit_seconds=60.0)).problem, "lost")
    assert second.values == {"found": 2}
