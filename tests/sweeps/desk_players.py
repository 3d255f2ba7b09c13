"""What meets at a sweep's desk, played in one process: worker groups that come and go, and Tune's trainables."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.sweeps.desk.desk import SweepDesk
from paceline.sweeps.desk.rules import Rules
from paceline.sweeps.trials import Point, Trial
from paceline.sweeps.work import GroupShape, Order, Report, Work
from paceline.tracking.points import Reading
from paceline.tracking.record import RunRecord

NOWHERE = "http://127.0.0.1:9"
"""An MLflow that does not answer."""
ONE, TWO = GroupShape(1, 1.0, 0.0, "pack"), GroupShape(2, 1.0, 0.0, "pack")
SECONDS = 20.0
"""Whatever takes longer hangs."""

Training = Callable[["Floor", Work], Awaitable[None]]


def ending(status: str = "finished", accuracy: float = 0.5, samples: int = 100, **changes: Any) -> dict[str, Any]:
    """How a group says that it ended."""
    if status == "failed":
        kind = changes.get("kind", "error")
        return {"status": status, "failure": {"rank": 0, "reason": "RuntimeError: no", "kind": kind}}
    values = {"weights_sha256": "ab", "step": samples // 10, "samples_per_second": 5.0, "peak_memory_bytes": 7}
    told = {"status": status, "metrics": {"val/accuracy": accuracy}, "samples": samples, "checkpoint": "", "epoch": 1}
    return {**told, **values, **changes}


def rung(step: int, accuracy: float = 0.5) -> dict[str, float]:
    """What a group reports at a rung."""
    return {"step": step, "samples": step * 10.0, "epochs": step / 10, "seconds": step / 5, "val/accuracy": accuracy}


async def finishes(floor: "Floor", work: Work) -> None:
    """Trains to the end."""
    await floor.desk.metrics(work.trial_id, work.attempt, [Reading(1, 1, {"val/accuracy": 0.1})])
    await asyncio.sleep(0)
    await floor.desk.finish(work.trial_id, work.attempt, ending())


async def until_stopped(floor: "Floor", work: Work) -> None:
    """Trains until it is told to stop."""
    while not await floor.desk.progress(work.trial_id, work.attempt, 1, 5.0):
        await asyncio.sleep(0.005)
    await floor.desk.finish(work.trial_id, work.attempt, ending("stopped"))


def with_rungs(*steps: int, accuracy: float = 0.5) -> Training:
    """Trains to the end, over rungs."""

    async def train(floor: "Floor", work: Work) -> None:
        for step in steps:
            await floor.desk.event(work.trial_id, work.attempt, "checkpoint", {"step": step, "path": f"step-{step}"})
            if not await floor.desk.rung(work.trial_id, work.attempt, rung(step, accuracy)):
                await floor.desk.finish(work.trial_id, work.attempt, ending("stopped", accuracy, step * 10))
                return
        await floor.desk.finish(work.trial_id, work.attempt, ending("finished", accuracy))

    return train


async def dies(floor: "Floor", work: Work) -> None:
    """Loses its processes; Ray Train starts the group again."""
    raise ProcessLookupError


class Floor:
    """A desk, and the worker groups that it wants to have, which do with each trial as they are told."""

    def __init__(self, folder: Path, *, points: int | None = 10, seats: int = 1, **rules: Any) -> None:
        self.folder = folder
        given = {"objectives": (("val/accuracy", "max"),), "max_failures": 3, "fresh_processes": False, **rules}
        self.desk = SweepDesk(folder, RunRecord("sweep", "sweep", NOWHERE, "test"), Rules(seats=seats, **given), points)
        self.trainings: dict[str, list[Training]] = {}
        """What is done with a trial, attempt after attempt; then, and by default, it is trained to the end."""
        self.groups: list[tuple[int, GroupShape]] = []
        """Seat and shape of each group, in the order of their starts."""
        self.taken: list[tuple[int, int, str, int]] = []
        """Seat, generation, trial and attempt, in the order in which groups took them."""
        self.alive: set[tuple[int, int]] = set()

    def order(self, id: str, shape: GroupShape = ONE, fresh: bool = False, **overrides: Any) -> Order:
        """An order for a trial."""
        record = RunRecord(f"sweep/{id}", id, NOWHERE, "test", parent="sweep", picture=False)
        folder = str(self.folder / "trials" / id)
        return Order(Point(id, overrides or {"optimizer.lr": 0.1}), shape, fresh, b"", record, folder, 10, 60.0)

    async def run(
        self, id: str, shape: GroupShape = ONE, fresh: bool = False, visit: str = "", **overrides: Any
    ) -> Report:
        """What Tune's trainable does in a step."""
        return await self.desk.run_to_rung(self.order(id, shape, fresh, **overrides), visit)

    async def trial(self, id: str) -> Trial:
        """A trial as the desk knows it."""
        return {trial.id: trial for trial in await self.desk.trials()}[id]

    async def events(self, kind: str) -> list[dict[str, Any]]:
        """What the watcher was told."""
        return [details for found, details in (await self.desk.view(0)).events if found == kind]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something."""
        while not condition():
            await asyncio.sleep(0.002)

    async def until_state(self, id: str, state: str) -> None:
        """Wait for a trial to be in a state."""
        while id not in {trial.id for trial in await self.desk.trials() if trial.state == state}:
            await asyncio.sleep(0.002)

    async def close(self) -> dict[str, Any]:
        """The end of the sweep."""
        return await self.desk.close("FINISHED", None, "", {}, 0.05)

    async def taken_by_a_group(self, seat: int = 0, is_heard_of: bool = True) -> Work:
        """A group that comes and takes a trial; it trains as the test says."""
        wanted = (await self.desk.view(0)).groups[seat]
        incarnation = await self.desk.enter(seat, wanted.generation, 0, f"{seat}-{wanted.generation}".encode())
        assert incarnation is not None
        work = await self.desk.take(seat, wanted.generation, incarnation)
        assert work is not None
        if is_heard_of:
            await self.desk.begin(work.trial_id, work.attempt, "cpu")
        return work

    async def serve_once(self) -> None:
        """A group that comes and trains one trial."""
        await finishes(self, await self.taken_by_a_group())

    async def drive(self) -> None:
        serving: dict[int, tuple[int, asyncio.Task[None]]] = {}
        while True:
            for wanted in (await self.desk.view(0)).groups:
                generation, _ = serving.get(wanted.seat, (None, None))
                if wanted.shape is not None and generation != wanted.generation:
                    self.groups.append((wanted.seat, wanted.shape))
                    task = asyncio.create_task(self._serve(wanted.seat, wanted.generation))
                    serving[wanted.seat] = wanted.generation, task
            for _, task in serving.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.002)

    async def _serve(self, seat: int, generation: int) -> None:
        desk, me = self.desk, (seat, generation)
        self.alive.add(me)
        try:
            incarnation = await desk.enter(seat, generation, 0, b"worker")
            while incarnation is not None and (work := await desk.take(seat, generation, incarnation)) is not None:
                self.taken.append((*me, work.trial_id, work.attempt))
                await desk.begin(work.trial_id, work.attempt, "cpu")
                left = self.trainings.get(work.trial_id, [])
                try:
                    await (left.pop(0) if left else finishes)(self, work)
                except ProcessLookupError:
                    incarnation = await desk.enter(seat, generation, 0, b"worker")
        finally:
            self.alive.discard(me)


def played(floor: Floor, scene: Callable[[], Awaitable[None]], groups: bool = True) -> None:
    """Play a scene at a desk, with or without groups that take its trials; fails when something hangs."""

    async def play() -> None:
        driver = asyncio.create_task(floor.drive() if groups else asyncio.sleep(SECONDS))
        story = asyncio.ensure_future(scene())
        try:
            done, _ = await asyncio.wait({driver, story}, timeout=SECONDS, return_when="FIRST_COMPLETED")
            assert done, "it hangs"
            for task in done:
                task.result()
            await asyncio.wait_for(floor.close(), SECONDS)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(play())


def states(trials: list[Trial]) -> Mapping[str, str]:
    """State of each trial."""
    return {trial.id: trial.state for trial in trials}
