"""A sweep without Ray: its coordinator, and in the same event loop its worker groups and Tune's trainables."""

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from paceline.storage.address import RunStore
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.messages import UNSEEN, Attempt, GroupShape, SweepView, TrialReport, TrialSpec, ViewCursor
from paceline.sweeps.sweep_log import SweepHistory, read_log
from paceline.sweeps.trial import PlannedTrial, Trial
from paceline.tracking.journal import Journal
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.run_record import RunRecord
from support.cluster.coordinators import NOWHERE, no_space

ONE, TWO = GroupShape(1, 1.0, 0.0, "pack"), GroupShape(2, 1.0, 0.0, "pack")
"""Worker groups of one and of two workers."""
HANGS_AFTER_SECONDS = 100.0

Training = Callable[["SimulatedSweep", Attempt], Awaitable[None]]
Test = Callable[..., Any]


class Taken(NamedTuple):
    """A trial that a worker group has taken."""

    slot: int
    generation: int
    trial: str
    attempt: int


def ending(status: str = "finished", accuracy: float = 0.5, samples: int = 100, **changes: Any) -> dict[str, Any]:
    """What a group reports at the end of a trial."""
    if status == "failed":
        return {"status": status, "failure": {"rank": 0, "reason": "RuntimeError: no", "kind": "error", **changes}}
    values = {"weights_sha256": "ab", "step": samples // 10, "samples_per_second": 5.0, "peak_memory_bytes": 7}
    end = {"status": status, "metrics": {"val/accuracy": accuracy}, "samples": samples, "checkpoint": "", "epoch": 1}
    return {**end, **values, **changes}


def rung(step: int, accuracy: float = 0.5) -> dict[str, float]:
    """What a group reports at a rung."""
    return {"step": step, "samples": step * 10.0, "epochs": step / 10, "seconds": step / 5, "val/accuracy": accuracy}


async def finishes(sweep: "SimulatedSweep", work: Attempt) -> None:
    """Train to the end."""
    await sweep.coordinator.metrics(work.trial_id, work.attempt, [MetricReading(1, 1, {"val/accuracy": 0.1})])
    await asyncio.sleep(0)
    await sweep.coordinator.finish(work.trial_id, work.attempt, ending())


async def until_stopped(sweep: "SimulatedSweep", work: Attempt) -> None:
    """Train until the coordinator says stop."""
    while not await sweep.coordinator.progress(work.trial_id, work.attempt, 1, 5.0):
        await asyncio.sleep(0.005)
    await sweep.coordinator.finish(work.trial_id, work.attempt, ending("stopped"))


async def dies(sweep: "SimulatedSweep", work: Attempt) -> None:
    """Lose the processes; Ray Train starts the group again."""
    raise ProcessLookupError


def ends_with(status: str = "finished", **changes: Any) -> Training:
    """End at once with this report, see `ending`."""

    async def train(sweep: "SimulatedSweep", work: Attempt) -> None:
        await sweep.coordinator.finish(work.trial_id, work.attempt, ending(status, **changes))

    return train


def with_rungs(*steps: int, accuracy: float = 0.5) -> Training:
    """Train to the end, over rungs."""

    async def train(sweep: "SimulatedSweep", work: Attempt) -> None:
        coordinator, trial = sweep.coordinator, (work.trial_id, work.attempt)
        for step in steps:
            await coordinator.event(*trial, "checkpoint", {"step": step, "path": f"step-{step}"})
            if not await coordinator.rung(*trial, rung(step, accuracy)):
                await coordinator.finish(*trial, ending("stopped", accuracy, step * 10))
                return
        await coordinator.finish(*trial, ending("finished", accuracy))

    return train


@contextmanager
def full_disk(part: str) -> Iterator[None]:
    """A disk on which journals with this in their path cannot grow."""
    append = Journal.append

    def fails(journal: Journal, items: Any) -> None:
        if part in str(journal.path):
            no_space()
        append(journal, items)

    with patch.object(Journal, "append", fails):
        yield


class SimulatedSweep:
    """A coordinator, and the worker groups that it asks for, which do with each trial what the test says."""

    store: RunStore | None = None
    """Where the sweep is kept when that is an object store."""

    def __init__(self, folder: Path, *, num_trials: int | None = 10, slots: int = 1, **rules: Any) -> None:
        self.folder = folder
        given = {"objectives": (("val/accuracy", "max"),), "max_failures": 3, "fresh_processes": False, **rules}
        record = RunRecord("sweep", "sweep", NOWHERE, "test")
        launch_id = uuid.uuid4().hex
        self._open = lambda: SweepCoordinator(
            folder, record, SweepRules(slots=slots, **given), num_trials, launch_id, self.store
        )
        self.coordinator = self._open()
        self.trainings: dict[str, list[Training]] = {}
        """By trial, what its attempts do, one after the other; then, and by default, it is trained to the end."""
        self.groups: list[tuple[int, GroupShape]] = []
        """Slot and shape of each group, in the order of their starts."""
        self.taken: list[Taken] = []
        self.alive: set[tuple[int, int]] = set()
        self._is_closed = False

    def spec(self, id: str, shape: GroupShape = ONE, fresh: bool = False, **params: Any) -> TrialSpec:
        """The spec of a trial."""
        record = RunRecord(f"sweep/{id}", id, NOWHERE, "test", parent="sweep", picture=False)
        folder = str(self.folder / "trials" / id)
        return TrialSpec(PlannedTrial(id, params or {"optimizer.lr": 0.1}), shape, fresh, b"", record, folder, 10, 60.0)

    async def run(
        self,
        id: str,
        shape: GroupShape = ONE,
        fresh: bool = False,
        visit: str = "",
        reported_step: int = 0,
        **params: Any,
    ) -> TrialReport:
        """Run a trial to its next rung or its end, as Tune's trainable does in a step."""
        return await self.coordinator.run_to_rung(self.spec(id, shape, fresh, **params), visit, reported_step)

    async def restart_coordinator(self) -> None:
        """Let the coordinator's process die and be started again; calls that were not answered stay so."""
        await self.settle()
        self.coordinator = self._open()

    async def run_all(self, *ids: str, shape: GroupShape = ONE) -> list[str]:
        """Run trials side by side; returns their states."""
        return [report.state for report in await asyncio.gather(*(self.run(id, shape) for id in ids))]

    async def begin(self, id: str, state: str = "running", shape: GroupShape = ONE) -> asyncio.Task[TrialReport]:
        """Let Tune ask for a trial, and wait until it has a state; returns the call."""
        call = asyncio.create_task(self.run(id, shape))
        await self.until_state(id, state)
        return call

    async def begin_at_work(self, id: str, slot: int = 0) -> tuple[asyncio.Task[TrialReport], Attempt]:
        """Let Tune ask for a trial, and a group take it."""
        call = await self.begin(id)
        return call, await self.taken_by_a_group(slot)

    def history(self) -> SweepHistory:
        """The sweep's journal."""
        return read_log(self.folder)

    def tracking(self, id: str = "0000") -> Path:
        """Folder of a trial's record."""
        return self.folder / "trials" / id / "tracking"

    async def view(self, cursor: ViewCursor = UNSEEN) -> SweepView:
        """The state of things as the driver sees it."""
        return await self.coordinator.view(cursor)

    async def trial(self, id: str) -> Trial:
        """A trial as the coordinator knows it."""
        return {trial.id: trial for trial in (await self.view()).trials}[id]

    async def states(self) -> dict[str, str]:
        """State of each trial."""
        return {trial.id: trial.state for trial in (await self.view()).trials}

    async def events(self, kind: str) -> list[dict[str, Any]]:
        """The events that the driver got."""
        return [details for found, details in (await self.view()).events if found == kind]

    async def warnings(self) -> list[str]:
        """The codes of the warnings that the driver got."""
        return [details.get("code", "") for details in await self.events("warning")]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something."""
        while not condition():
            await asyncio.sleep(0.002)

    async def until_state(self, id: str, state: str) -> None:
        """Wait for a trial to be in a state."""
        while (await self.states()).get(id) != state:
            await asyncio.sleep(0.002)

    async def until_records_are_closed(self) -> None:
        """Wait until nothing is left to do for the trials that have ended."""
        await self.until(lambda: not self.coordinator._recorder._closer._tasks)

    async def settle(self) -> None:
        """Let everybody who can go on do so."""
        for _ in range(3):
            for _ in range(50):
                await asyncio.sleep(0)
            await self.coordinator._recorder.durable()
            await self.coordinator._scheduler.all_opened()
            for run in list(self.coordinator._scheduler.runs.values()):
                await run.writes.settled()
            await self.coordinator._recorder._closer.finish(1.0)

    async def close(self, seconds: float = 0.05) -> dict[str, Any]:
        """End the sweep, MLflow has so many seconds."""
        self._is_closed = True
        return await self.coordinator.close("FINISHED", None, "", {}, seconds)

    async def close_once(self) -> None:
        """End the sweep, unless the test has done so."""
        if not self._is_closed:
            await self.close()

    async def taken_by_a_group(self, slot: int = 0) -> Attempt:
        """A group that comes and takes a trial; the test trains it."""
        wanted = (await self.view()).groups[slot]
        incarnation = await self.coordinator.enter(slot, wanted.generation, 0, f"{slot}-{wanted.generation}".encode())
        assert incarnation is not None
        work = await self.coordinator.take(slot, wanted.generation, incarnation)
        assert work is not None
        await self.coordinator.begin(work.trial_id, work.attempt, "cpu")
        return work

    async def serve_once(self) -> None:
        """A group that comes and trains one trial."""
        await finishes(self, await self.taken_by_a_group())

    async def drive(self) -> None:
        """Start the groups that are asked for."""
        serving: dict[int, tuple[int, asyncio.Task[None]]] = {}
        while True:
            for wanted in (await self.view()).groups:
                generation, _ = serving.get(wanted.slot, (None, None))
                if wanted.shape is not None and generation != wanted.generation:
                    self.groups.append((wanted.slot, wanted.shape))
                    task = asyncio.create_task(self._serve(wanted.slot, wanted.generation))
                    serving[wanted.slot] = wanted.generation, task
            for _, task in serving.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.002)

    async def _serve(self, slot: int, generation: int) -> None:
        coordinator, me = self.coordinator, (slot, generation)
        self.alive.add(me)
        try:
            incarnation = await coordinator.enter(slot, generation, 0, b"worker")
            while incarnation is not None and (work := await coordinator.take(slot, generation, incarnation)):
                self.taken.append(Taken(*me, work.trial_id, work.attempt))
                await coordinator.begin(work.trial_id, work.attempt, "cpu")
                left = self.trainings.get(work.trial_id, [])
                try:
                    await (left.pop(0) if left else finishes)(self, work)
                except ProcessLookupError:
                    incarnation = await coordinator.enter(slot, generation, 0, b"worker")
        finally:
            self.alive.discard(me)


def play(sweep: SimulatedSweep, scene: Callable[[], Awaitable[None]], groups: bool = True) -> None:
    """Play a scene at a coordinator, with or without groups that take its trials; fails when something hangs."""

    async def run() -> None:
        driver = asyncio.create_task(sweep.drive() if groups else asyncio.sleep(HANGS_AFTER_SECONDS))
        story = asyncio.ensure_future(scene())
        try:
            done, _ = await asyncio.wait({driver, story}, timeout=HANGS_AFTER_SECONDS, return_when="FIRST_COMPLETED")
            assert done, "it hangs"
            for task in done:
                task.result()
            assert story in done, "it hangs"
            await asyncio.wait_for(sweep.close_once(), HANGS_AFTER_SECONDS)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def simulated(groups: bool = True, **given: Any) -> Callable[[Test], Test]:
    """Make an `async def test(sweep, ...)` a test, which plays at a `SimulatedSweep(**given)` of its own.

    Args:
        groups: whether worker groups come by themselves when they are asked for.
    """

    def decorate(body: Test) -> Test:
        own = [parameter for name, parameter in inspect.signature(body).parameters.items() if name != "sweep"]
        fixture = inspect.Parameter("new_sweep", inspect.Parameter.POSITIONAL_OR_KEYWORD)

        @wraps(body)
        def test(new_sweep: Callable[..., SimulatedSweep], **fixtures: Any) -> None:
            sweep = new_sweep(**given)
            play(sweep, lambda: body(sweep, **fixtures), groups)

        test.__signature__ = inspect.Signature([fixture, *own])  # type: ignore[attr-defined]
        return test

    return decorate
