"""Writes of the coordinator: in their order, off its event loop, and journals made durable together."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.sweeps.coordinator.write_queue import GroupCommit, WriteQueue
from support.cluster.coordinators import no_space


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_writes_keep_their_order_and_do_not_hold_up_the_loop(threads: ThreadPoolExecutor) -> None:
    written: list[tuple[int, str]] = []
    may_go_on = threading.Event()

    def write(number: int) -> int:
        assert may_go_on.wait(10)
        written.append((number, threading.current_thread().name))
        return number

    async def scene() -> None:
        queue = WriteQueue(threads)
        futures = [queue.put(lambda n=number: write(n)) for number in range(20)]  # type: ignore[misc]
        await asyncio.sleep(0.01)
        assert not written
        may_go_on.set()
        await queue.settled()
        assert [future.result() for future in futures] == list(range(20))

    asyncio.run(scene())
    assert [number for number, _ in written] == list(range(20))
    assert threading.current_thread().name not in {name for _, name in written}


def test_write_that_fails_is_the_error_of_its_own_caller_alone(threads: ThreadPoolExecutor) -> None:
    async def scene() -> None:
        queue = WriteQueue(threads)
        failed, done = queue.put(no_space), queue.put(lambda: 5)
        with pytest.raises(OSError, match="No space"):
            await failed
        assert await done == 5
        queue.put(no_space)
        await queue.settled()  # raises nothing

    asyncio.run(scene())


class SlowJournal:
    """Takes as many entries at once as it is given, and is told when it may go on."""

    def __init__(self, fails: bool = False) -> None:
        self.commits: list[int] = []
        self.may_go_on = threading.Event()
        self._fails = fails

    def append(self, entries: Any) -> None:
        assert self.may_go_on.wait(10)
        if self._fails:
            no_space()
        self.commits.append(len(entries))


def committing(threads: ThreadPoolExecutor, journal: SlowJournal, check: Callable[[Any], None], count: int) -> None:
    async def scene() -> None:
        commit = GroupCommit(journal.append, threads)
        first = commit.put(("trial", {}))
        await asyncio.sleep(0.05)  # its fsync is under way
        others = [commit.put(("trial", {})) for _ in range(count)]
        assert not first.done()
        journal.may_go_on.set()
        await commit.settled()
        check([first, *others])

    asyncio.run(scene())


def test_entries_that_come_during_an_fsync_share_the_next_one(threads: ThreadPoolExecutor) -> None:
    journal = SlowJournal()
    committing(threads, journal, lambda futures: [future.result() for future in futures], 50)
    assert journal.commits == [1, 50]


def test_entries_that_could_not_be_written_say_so(threads: ThreadPoolExecutor) -> None:
    def check(futures: Any) -> None:
        assert all(isinstance(future.exception(), OSError) for future in futures)

    committing(threads, SlowJournal(fails=True), check, 3)


def test_no_entry_is_lost_or_written_twice_while_others_come(threads: ThreadPoolExecutor) -> None:
    written: list[Any] = []

    async def scene() -> None:
        commit = GroupCommit(written.extend, threads)
        for number in range(2000):
            commit.put((str(number), {}))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await commit.settled()

    asyncio.run(scene())
    assert [int(kind) for kind, _ in written] == list(range(2000))
