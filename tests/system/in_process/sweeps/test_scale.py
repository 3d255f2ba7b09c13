"""A trial costs the coordinator and the driver the same after 150 others as after 25: lines of code are counted."""

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

import paceline.sweeps
from paceline.sweeps.coordinator import slot_scheduler
from paceline.sweeps.display import PlainSweepListener
from paceline.sweeps.messages import UNSEEN, ViewCursor
from paceline.sweeps.trial import TrialTable
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.upload_cursor import UploadReport
from support.sweeps.simulation import ONE, SimulatedSweep, ending, rung, simulated

TRIALS, WINDOW = 150, 25
SWEEPS = str(paceline.sweeps.__path__[0])


class LightRecord:
    """A trial's record that takes all and writes nothing."""

    def __init__(self, *given: Any, **named: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: True

    def close(self, *given: Any) -> dict[str, Any]:
        return asdict(UploadReport("http://page", "1", "run", 0, None))


@pytest.fixture(autouse=True)
def _light_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_scheduler, "TrialCoordinator", LightRecord)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class LineCount:
    """Counts the lines of `paceline.sweeps` that this thread runs, those of each turn of a loop among them."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(SWEEPS):
            return None
        self.lines += event == "line"
        return self


@contextmanager
def counting() -> Iterator[LineCount]:
    count, before = LineCount(), sys.gettrace()
    sys.settrace(count)
    try:
        yield count
    finally:
        sys.settrace(before)


class Driver:
    """What the driver does with each look."""

    def __init__(self, sweep: SimulatedSweep) -> None:
        self._sweep, self._table = sweep, TrialTable()
        self._cursor: ViewCursor = UNSEEN
        self._listener = PlainSweepListener(Console(file=io.StringIO()), [("val/accuracy", "max")], verbose=True)
        self.num_seen = 0

    async def look(self) -> None:
        view = await self._sweep.view(self._cursor)
        self._cursor = view.cursor
        self.num_seen += len(view.trials)
        self._table.update(view.trials)
        self._listener.trials(self._table)


async def trial(sweep: SimulatedSweep, driver: Driver, id: str, group: tuple[int, int, int]) -> None:
    """One trial, over a rung, to its end."""
    coordinator, point = sweep.coordinator, {"optimizer.lr": 0.001 * int(id)}
    call = asyncio.ensure_future(sweep.run(id, **point))
    work = await coordinator.take(*group)
    assert work is not None
    me = work.trial_id, work.attempt
    await coordinator.metrics(*me, [MetricReading(1, 1, {"val/accuracy": int(id) / 1000})])
    await coordinator.progress(*me, 1, 5.0)
    await driver.look()
    at_rung = asyncio.ensure_future(coordinator.rung(*me, rung(1)))
    await call
    call = asyncio.ensure_future(sweep.run(id, **point))
    assert await at_rung
    await coordinator.finish(*me, ending(accuracy=int(id) / 1000))
    await call
    await driver.look()


@simulated(groups=False, num_trials=TRIALS)
async def test_no_event_costs_more_in_a_longer_sweep(sweep: SimulatedSweep) -> None:
    await sweep.coordinator.prepare([ONE])
    generation = (await sweep.view()).groups[0].generation
    incarnation = await sweep.coordinator.enter(0, generation, 0, b"")
    assert incarnation is not None
    driver, lines = Driver(sweep), []
    parts = (
        range(WINDOW),
        range(WINDOW, 2 * WINDOW),
        range(2 * WINDOW, TRIALS - WINDOW),
        range(TRIALS - WINDOW, TRIALS),
    )
    for numbers in parts:
        with counting() if len(numbers) == WINDOW and numbers.start else nullcontext(LineCount()) as count:
            for number in numbers:
                await trial(sweep, driver, f"{number:04d}", (0, generation, incarnation))
        lines.append(count.lines)
    _, early, _, late = lines
    assert early > 100 * WINDOW
    assert late < 1.1 * early
    assert driver.num_seen < 4 * TRIALS
    await sweep.until_records_are_closed()  # then nothing is kept of the ended trials but how they ended
