"""Opening the records of trials: side by side, once for each, and slots in the order of the calls."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.coordinator import slot_scheduler
from paceline.sweeps.coordinator.running_trial import TrialCoordinator
from support.sweeps.simulation import SimulatedSweep, ends_with, play, simulated


class SlowOpening:
    """Opens the records of trials only when it is told to, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: str) -> None:
        self.opened: list[str] = []
        self._may_open = {trial_id: threading.Event() for trial_id in held}
        monkeypatch.setattr(slot_scheduler, "TrialCoordinator", self._open)

    def release(self, trial_id: str) -> None:
        self._may_open[trial_id].set()

    def _open(self, tracking: Path, *given: Any, **named: Any) -> TrialCoordinator:
        trial_id = tracking.parent.name
        if trial_id in self._may_open:
            assert self._may_open[trial_id].wait(60)
        self.opened.append(trial_id)
        return TrialCoordinator(tracking, *given, **named)


@simulated()
async def test_a_trial_that_is_asked_for_twice_while_it_is_opened_has_one_record(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = SlowOpening(monkeypatch, "0000")
    first = asyncio.ensure_future(sweep.run("0000"))
    await asyncio.sleep(0)
    first.cancel()  # Tune asks again, and nobody waits for the first answer any more
    second = asyncio.ensure_future(sweep.run("0000"))
    await asyncio.sleep(0.01)
    opening.release("0000")
    assert (await second).state == "finished"
    assert opening.opened == ["0000"]
    assert len(sweep.taken) == 1


@simulated()
async def test_slots_are_assigned_in_the_order_in_which_trials_were_asked_for(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are opened side by side: the first may take the longest."""
    opening = SlowOpening(monkeypatch, "0000")
    calls = [asyncio.ensure_future(sweep.run(trial_id)) for trial_id in ("0000", "0001", "0002")]
    await sweep.until(lambda: set(opening.opened) == {"0001", "0002"})
    opening.release("0000")
    assert [(await call).state for call in calls] == ["finished"] * 3
    assert [each.trial for each in sweep.taken] == ["0000", "0001", "0002"]


def test_only_a_trial_that_was_never_begun_is_new_to_mlflow(new_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def opens(*given: Any, is_new: bool, **named: Any) -> TrialCoordinator:
        told.append(is_new)
        return TrialCoordinator(*given, is_new=is_new, **named)

    monkeypatch.setattr(slot_scheduler, "TrialCoordinator", opens)
    for state in ("pending", "finished"):
        sweep = new_sweep()
        if state == "pending":
            sweep.trainings = {"0000": [ends_with("failed", reason="no room", kind="full_disk")]}

        async def scene(sweep: SimulatedSweep = sweep, state: str = state) -> None:
            assert (await sweep.run("0000")).state == state
            await sweep.close()

        play(sweep, scene)
        shutil.rmtree(sweep.tracking())
    assert told == [True, False]
