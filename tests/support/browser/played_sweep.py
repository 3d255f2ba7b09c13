"""A sweep as `paceline sweep` leaves it, played without Ray: its coordinator, its specs, its records, note and
pictures are the real ones; what the workers would have measured is made up."""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.preflight import Resources
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.launch import SlotPlan, SweepLaunch
from paceline.sweeps.messages import Attempt
from paceline.sweeps.planning.planned_trials import plan_trials
from paceline.sweeps.results.pictures import PICTURES, Drawing
from paceline.sweeps.results.record import artifacts_of, best_config, note_of, status_of, sweep_record, write_best
from paceline.sweeps.search.trial_specs import base_of, spec_builder_of
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor
from support.sweeps.configs import sweep_config
from support.sweeps.launches import launch_of

LR, BATCH = "optimizer.lr", "data.global_batch_size"
BEGAN_MS = int(time.time() * 1000)
SAMPLES = 3200
"""What each trial sees in all."""
POINTS = 20
"""How often a trial measures."""
CLOSE_SECONDS = 120.0


@dataclass(frozen=True)
class Played:
    """A sweep that is over."""

    folder: Path
    experiment_id: str
    parent_id: str
    """MLflow's id of the sweep's own run."""
    trial_id: str
    """MLflow's id of the first trial's run."""


def play_sweep(storage: Path, uri: str, failure: str) -> Played:
    """Run twelve settings of two seeds each, and record all trials in MLflow. One trial is pruned, and one fails.

    Args:
        uri: of a store that is there.
        failure: why the one fails.
    """
    space = {LR: [0.01, 0.05, 0.2, 0.8], BATCH: [32, 64, 128]}
    config = sweep_config(space, {"name": "browsed"}, metric="val/accuracy", seeds=2)
    launch = launch_of(config, storage, plan_trials(config).planned_trials, uri=uri, close_seconds=CLOSE_SECONDS)
    try:
        return asyncio.run(_play(launch, failure))
    finally:
        launch.claimed.release()


async def _play(launch: SweepLaunch, failure: str) -> Played:
    plan = SlotPlan(launch, Resources.of_machine(cpus=1, gpus=0))
    specs = spec_builder_of(launch, plan, base_of(launch))
    objectives = tuple(launch.sweep.objectives)
    rules = SweepRules(objectives=objectives, slots=1, max_failures=0, fresh_processes=False)
    coordinator = SweepCoordinator(launch.folder.path, sweep_record(launch), rules, launch.total)
    await coordinator.prepare(plan.shapes[:1])
    await _until_in_mlflow(launch.folder.tracking)
    [group] = (await coordinator.view()).groups
    incarnation = await coordinator.enter(group.slot, group.generation, 0, b"worker")
    assert incarnation is not None
    last = launch.planned_trials[-1].id
    for planned in launch.planned_trials:
        asked = asyncio.create_task(coordinator.run_to_rung(specs.make(planned)))
        work = await coordinator.take(group.slot, group.generation, incarnation)
        assert work is not None
        await _train(coordinator, work, planned.params, failure if planned.id == last else "")
        await asked
    return await _close(launch, coordinator)


async def _until_in_mlflow(folder: Path) -> None:
    """Wait for the sweep's own run: records of trials that come before it try again only after a while."""
    deadline = time.monotonic() + CLOSE_SECONDS
    while not UploadCursor.load(folder / CURSOR_FILE).run_id:
        assert time.monotonic() < deadline, "the sweep's own run does not get into MLflow"
        await asyncio.sleep(0.05)


async def _train(coordinator: SweepCoordinator, work: Attempt, params: Mapping[str, Any], failure: str) -> None:
    """What a worker group tells of a trial. A rate of 0.8 with small batches is pruned half way."""
    about = work.trial_id, work.attempt
    await coordinator.begin(*about, "cpu")
    is_pruned = (params[LR], params[BATCH]) == (0.8, 32)
    readings = _readings(work, params, POINTS // 2 if is_pruned else POINTS)
    assert await coordinator.metrics(*about, readings)
    if failure:
        failed = {"rank": 0, "reason": failure, "kind": "error"}
        await coordinator.finish(*about, {"status": "failed", "failure": failed})
        return
    if is_pruned:
        await coordinator.prune(work.trial_id, "median: others were better after the same samples")
    end = readings[-1]
    told = {"metrics": end.values, "step": end.step, "samples": end.step * params[BATCH], "checkpoint": ""}
    measured = {"weights_sha256": "ab", "samples_per_second": _speed(params), "peak_memory_bytes": 2**28}
    await coordinator.finish(*about, {"status": "stopped" if is_pruned else "finished", **told, **measured, "epoch": 1})


def _readings(work: Attempt, params: Mapping[str, Any], count: int) -> list[MetricReading]:
    best = 0.95 - 0.06 * abs(math.log10(params[LR] / 0.2)) - params[BATCH] / 2000 + 0.004 * params["seed"]
    readings = []
    for number in range(1, count + 1):
        step = SAMPLES * number // POINTS // params[BATCH]
        left = math.exp(-4 * number / POINTS)
        losses = {"train/loss": 2.3 * left + 1 - best, "val/loss": 2.2 * left + 1.1 - best}
        epochs = dict.fromkeys(("epoch", "validation_epoch"), number / POINTS)
        speeds = {"samples_per_second": 1.45 * _speed(params)}
        if number == count:
            speeds["samples_per_second_overall"] = _speed(params)
        values = {**losses, "val/accuracy": best - (best - 0.1) * left, **epochs, **speeds}
        readings.append(MetricReading(step, BEGAN_MS + number, values))
    return readings


def _speed(params: Mapping[str, Any]) -> float:
    return 1000.0 * math.log2(params[BATCH]) + 10 * params["seed"]


async def _close(launch: SweepLaunch, coordinator: SweepCoordinator) -> Played:
    """What the driver does at the end."""
    trials = (await coordinator.view()).trials
    best = best_config(launch.config, trials, launch.sweep.objectives)
    write_best(launch.folder, best)
    drawing = Drawing()
    drawing.start(launch.folder.path, launch.config, trials)
    pictures = await asyncio.to_thread(drawing.finish, CLOSE_SECONDS)
    shown = {name: title for name, title in PICTURES.items() if name in pictures}
    status = status_of(trials, launch.total, "")
    note = note_of(launch, trials, status, "", None, shown)
    artifacts = {**artifacts_of(launch, trials, best), **pictures}
    report = await coordinator.close("FINISHED", None, note, artifacts, CLOSE_SECONDS)
    assert (status, report["unsent"], report["error"]) == ("finished", 0, None)
    launch.folder.write(status="finished")
    first = str((await coordinator.view()).trials[0].mlflow_run_id)
    return Played(launch.folder.path, report["experiment_id"], report["run_id"], first)
