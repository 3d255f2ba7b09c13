"""The coordinator and a slow disk: its event loop waits for no fsync, and its answers wait for what they depend on."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.coordinator.write_queue import GroupCommit, WriteQueue
from paceline.sweeps.messages import Attempt
from paceline.sweeps.sweep_log import read_log
from paceline.sweeps.trial import PlannedTrial
from paceline.tracking.metric_points import MetricReading
from support.cluster.coordinators import no_space
from support.sweeps.simulation import ONE, SimulatedSweep, ending, rung, simulated, with_rungs


class Disk:
    """Counts the syncs by thread, and holds up those of a file until `resume`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncing_threads: set[int] = set()
        self.held = ""
        self._may_go_on = threading.Event()
        sync = os.fsync

        def slow(descriptor: int) -> None:
            self.syncing_threads.add(threading.get_ident())
            if self.held and os.readlink(f"/proc/self/fd/{descriptor}").endswith(self.held):
                assert self._may_go_on.wait(60)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)

    def hold(self, name: str) -> None:
        self.held, self._may_go_on = name, threading.Event()

    def resume(self) -> None:
        self.held = ""
        self._may_go_on.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.resume()


async def trains(sweep: SimulatedSweep, work: Attempt) -> None:
    """Report all that workers may report, and fail."""
    coordinator, trial = sweep.coordinator, (work.trial_id, work.attempt)
    await coordinator.event(*trial, "ranks", {"text": "rank 0 on this machine"})
    assert await coordinator.metrics(*trial, [MetricReading(1, 1, {"val/accuracy": 0.1})])
    await coordinator.event(*trial, "checkpoint", {"step": 1, "path": "step-1"})
    assert await coordinator.rung(*trial, rung(1))
    await coordinator.finish(*trial, ending("failed", traceback_text="Traceback"))


@simulated(num_trials=3)
async def test_event_loop_waits_for_no_disk(sweep: SimulatedSweep, disk: Disk) -> None:
    disk.syncing_threads.clear()  # those of the start, when nobody waits yet
    sweep.trainings = {"0000": [trains], "0001": [with_rungs(1, 2)]}
    await sweep.coordinator.prepare([ONE])
    for id in ("0000", "0001"):
        while (await sweep.run(id)).state == "running":
            pass
    await sweep.coordinator.skip(PlannedTrial("0002", {"optimizer.lr": -1.0}), "no such rate")
    await sweep.until_records_are_closed()
    await sweep.close()
    assert disk.syncing_threads
    assert threading.get_ident() not in disk.syncing_threads
    states = {id: trial.state for id, trial in sweep.history().trials.items()}
    assert states == {"0000": "failed", "0001": "finished", "0002": "skipped"}


async def blocks(call: Any) -> "asyncio.Task[Any]":
    """Begin a call, which is not answered while the disk does not answer."""
    task = asyncio.ensure_future(call)
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()
    return task


@simulated(groups=False)
async def test_answers_wait_for_the_log_and_signs_of_life_do_not(sweep: SimulatedSweep, disk: Disk) -> None:
    call, work = await sweep.begin_at_work("0000")
    coordinator, trial = sweep.coordinator, (work.trial_id, work.attempt)
    disk.hold("log.jsonl")
    at_rung = await blocks(coordinator.rung(*trial, rung(1)))
    assert not call.done()  # Tune must not decide about a rung that a later launch does not know
    assert await asyncio.wait_for(coordinator.progress(*trial, 1, 5.0), 30) is False
    assert await asyncio.wait_for(coordinator.metrics(*trial, [MetricReading(1, 1, {"val/accuracy": 0.5})]), 30)
    disk.resume()
    assert (await call).state == "running"
    call = asyncio.ensure_future(sweep.run("0000"))
    assert await at_rung is True
    disk.hold("log.jsonl")
    finishing = await blocks(coordinator.finish(*trial, ending()))
    assert not call.done()
    disk.resume()
    await finishing
    assert (await call).state == "finished"
    assert read_log(sweep.folder).trials["0000"].state == "finished"


@simulated(groups=False)
async def test_attempt_is_in_the_log_before_it_begins_and_metrics_in_the_journal_before_they_count(
    sweep: SimulatedSweep, disk: Disk
) -> None:
    call = await sweep.begin("0000")
    await sweep.settle()
    disk.hold("log.jsonl")
    taking = await blocks(sweep.taken_by_a_group())
    disk.resume()
    work = await taking
    assert read_log(sweep.folder).trials["0000"].attempts == work.attempt == 1
    await sweep.settle()
    disk.hold("journal.jsonl")
    readings = [MetricReading(1, 1, {"val/accuracy": 0.5})]
    recording = await blocks(sweep.coordinator.metrics(work.trial_id, work.attempt, readings))
    disk.resume()
    assert await recording is True
    assert '"val/accuracy"' in Path(sweep.tracking() / "journal.jsonl").read_text()
    await sweep.coordinator.finish(work.trial_id, work.attempt, ending())
    await call


@simulated(groups=False)
async def test_trial_is_opened_once_though_tune_asks_twice(sweep: SimulatedSweep, disk: Disk) -> None:
    disk.hold("record.json.new")
    first = await blocks(sweep.run("0000"))
    second = await blocks(sweep.run("0000"))
    disk.resume()
    await sweep.until_state("0000", "running")
    await sweep.serve_once()
    assert [(await call).state for call in (first, second)] == ["pending", "finished"]
    assert (await sweep.trial("0000")).attempts == 1


# The queues of writes


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_writes_keep_their_order_and_do_not_hold_up_the_loop(threads: ThreadPoolExecutor) -> None:
    written: list[tuple[int, str]] = []
    may_go_on = threading.Event()

    def write(number: int) -> int:
        assert may_go_on.wait(60)
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

    def __init__(self, fails: bool) -> None:
        self.commits: list[int] = []
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self._fails = fails

    def append(self, entries: Any) -> None:
        self.began.set()
        assert self.may_go_on.wait(60)
        if self._fails:
            no_space()
        self.commits.append(len(entries))


@pytest.mark.parametrize("fails", [False, True])
def test_entries_that_come_during_an_fsync_share_the_next_one_or_its_error(
    threads: ThreadPoolExecutor, fails: bool
) -> None:
    journal = SlowJournal(fails)

    async def scene() -> None:
        commit = GroupCommit(journal.append, threads)
        entries = [commit.put(("trial", {}))]
        assert await asyncio.to_thread(journal.began.wait, 60)
        entries += [commit.put(("trial", {})) for _ in range(50)]
        assert not entries[0].done()
        journal.may_go_on.set()
        await commit.settled()
        assert {isinstance(entry.exception(), OSError) for entry in entries} == {fails}

    asyncio.run(scene())
    assert journal.commits == ([] if fails else [1, 50])


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
