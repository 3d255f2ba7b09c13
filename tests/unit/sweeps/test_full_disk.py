"""A sweep's coordinator leaves trials that find a disk full for the same command, and stops while it stays full."""

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.failure import describe
from paceline.engine.outcome import CheckpointLost
from paceline.errors import BAD_ENVIRONMENT, EnvironmentFault
from paceline.sweeps.coordinator import slot_scheduler, sweep_rules
from paceline.sweeps.coordinator.sweep_rules import DiskRoom
from paceline.sweeps.results.record import Closing
from paceline.sweeps.sweep import _result
from paceline.sweeps.trial import PlannedTrial, Trial
from support.cluster.coordinators import no_space
from support.sweeps.configs import sweep_config
from support.sweeps.launches import launch_of
from support.sweeps.simulation import SimulatedSweep, Training, ends_with, simulated, until_stopped, with_rungs

REASON = "its state could not be saved in /runs: No space left on device"


def finds_disk_full() -> Training:
    """Train to the end, whose checkpoint does not fit."""
    lost = CheckpointLost(REASON, "checkpoint-lost")
    lost.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    failure = describe(lost, 0)
    return ends_with("failed", reason=failure.reason, kind=failure.kind)


@simulated()
async def test_one_trial_without_room_is_left_and_the_others_continue(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0001": [finds_disk_full()]}
    states = [(await sweep.run(id)).state for id in ("0000", "0001", "0002")]
    assert states == ["finished", "pending", "finished"]
    view = await sweep.view()
    assert (view.over, view.fault, view.disk_full) == ("", "", REASON)
    assert [event["trial"] for event in await sweep.events("warning") if event["code"] == "disk-full"] == ["0001"]
    await sweep.close()
    trial = sweep.history().trials["0001"]
    assert (trial.state, trial.reason) == ("pending", REASON)


@simulated(slots=2)
async def test_sweep_stops_when_the_disk_stays_full(sweep: SimulatedSweep) -> None:
    sweep.trainings = {id: [finds_disk_full()] for id in ("0000", "0001", "0002", "0003")}
    assert await sweep.run_all("0000", "0001", "0002", "0003") == ["pending"] * 4
    assert (await sweep.run("0004")).state == "pending"
    await sweep.until(lambda: not sweep.alive)
    view = await sweep.view()
    assert (view.over, view.fault, view.disk_full) == (REASON, REASON, REASON)
    assert 2 <= len({taken.trial for taken in sweep.taken}) < 4  # one may be at work in the other slot
    assert "failed" not in (await sweep.states()).values()


@simulated(slots=2)
async def test_sweep_stops_at_once_when_its_own_folder_takes_nothing(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep.coordinator._scheduler.disk, "_probe", lambda folder: folder != sweep.folder)
    sweep.trainings = {"0000": [finds_disk_full()], "0001": [until_stopped]}
    running = asyncio.create_task(sweep.run("0001"))
    await sweep.until(lambda: sweep.taken)
    assert (await sweep.run("0000")).state == "pending"
    assert (await running).state == "pending"  # it was told to stop
    assert (await sweep.view()).over == REASON
    assert (await sweep.run("0002")).state == "pending"
    assert {taken.trial for taken in sweep.taken} == {"0000", "0001"}


@simulated()
async def test_the_disk_is_looked_at_beside_the_event_loop(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def probe(folder: Path) -> bool:
        seen.append(threading.get_ident())
        return True

    monkeypatch.setattr(sweep.coordinator._scheduler.disk, "_probe", probe)
    sweep.trainings = {"0000": [finds_disk_full()]}
    assert (await sweep.run("0000")).state == "pending"
    assert seen
    assert threading.get_ident() not in seen


@simulated()
async def test_trials_whose_records_cannot_be_opened_are_left_and_stop_the_sweep(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(slot_scheduler, "TrialCoordinator", no_space)
        assert (await sweep.run("0000")).state == "pending"
    assert "trial-not-recorded" in await sweep.warnings()
    assert (await sweep.run("0000")).state == "finished"  # there is room again
    monkeypatch.setattr(slot_scheduler, "TrialCoordinator", no_space)
    assert [(await sweep.run(f"000{number}")).state for number in (1, 2, 3)] == ["pending"] * 3
    view = await sweep.view()
    assert (bool(view.over), view.fault) == (True, view.disk_full)
    assert "No space left" in view.fault
    assert sorted(await sweep.states()) == ["0000", "0001", "0002"]  # the last one was not asked for


@simulated()
async def test_trial_whose_part_of_tune_found_the_disk_full_is_left(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [with_rungs(1)]}
    assert (await sweep.run("0000")).state == "running"
    await sweep.coordinator.found_disk_full("0000", REASON)
    assert (await sweep.trial("0000")).state == "pending"
    assert (await sweep.view()).disk_full == REASON
    assert (await sweep.run("0001")).state == "finished"
    await sweep.coordinator.found_disk_full("0001", REASON)
    assert (await sweep.trial("0001")).state == "finished"


@pytest.mark.parametrize(("probed", "stops_at"), [(True, sweep_rules.MOST_IN_A_ROW), (False, 1)])
def test_disk_is_judged_by_trials_in_a_row_and_by_a_probe(tmp_path: Path, probed: bool, stops_at: int) -> None:
    disk = DiskRoom(tmp_path, lambda folder: probed)
    assert [disk.was_lacking(REASON) for _ in range(3)].index(True) == stops_at - 1
    disk.was_found()
    assert disk.was_lacking(REASON) is not probed


@pytest.mark.parametrize("fault", ["", REASON])
def test_driver_answers_with_a_fault_of_the_environment(tmp_path: Path, fault: str, golden: Any) -> None:
    points = [PlannedTrial(f"000{number}", {"optimizer.lr": number}) for number in range(3)]
    launch = launch_of(sweep_config(metric="val/accuracy"), tmp_path, points)
    trials = [Trial("0000", {}, "finished"), Trial("0001", {}, "pending", REASON)]
    with pytest.raises(EnvironmentFault) as caught:
        _result(launch, Closing("interrupted", trials, {}, fault, REASON), 1.0)
    assert (caught.value.code, caught.value.exit_code) == ("disk-full", BAD_ENVIRONMENT)
    assert caught.value.fields == {"left": 2, "folder": str(launch.folder.path)}
    golden(str(caught.value).replace(str(tmp_path), "<storage>"))
