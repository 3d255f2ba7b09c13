"""Cost of a trial for the coordinator of a sweep after 5,000 others, and its answers on a slow disk.

    uv run python jobs/benchmarks/sweep_scale.py

The coordinator is the one of `paceline sweep`, with its log and the records of its trials on the disk. Around it, in
the same event loop, are simulated worker groups, whose trials take no time, the calls of Ray Tune's trainables, the
real searcher of each arm, and the driver with its display. There is no Ray, and no MLflow: what these cost is not
measured.

grid      trials that are known in advance, one after the other on each slot.
random    the same for random values; with a second axis.
optuna    the trials come from Optuna's TPE sampler, which has all results.
asha      as grid, with two rungs at which the worst three quarters of the trials so far are stopped.

Cost      CPU and clock seconds of a trial in each arm, of trials 100 to 600 and of the last 500, and their ratio. The
          verdict goes by CPU time, since load from elsewhere hits the two parts of a run at different times.
Memory    of the whole process, after 600 trials and at the end: what it grows by is that of the trials themselves.
Answers   with `fsync` slowed to `--fsync-ms` and 64 slots whose trials report several times a second: how long the
          coordinator takes to answer what waits for nobody else (progress, metrics, a checkpoint's permission, the end
          of a trial, the driver's look).
Real      a whole `paceline sweep` with worker processes, Ray and MLflow: as many random trials of a tiny network, two
          steps each. Clock seconds of a trial, and the memory of the driver, of the coordinator, and of what sends to
          MLflow, by trials that have ended: results stay in memory, and nothing else may. Takes ten minutes.
"""

import asyncio
import bisect
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from harness import ArmFailed, Benchmark, Part, Target, exactly
from ray.tune.search import Searcher
from rich.console import Console

from paceline.config.experiment import ExperimentConfig, validate
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.sweeps.coordinator.sweep_rules import SweepRules
from paceline.sweeps.display import PlainSweepListener
from paceline.sweeps.messages import UNSEEN, Attempt, GroupShape, TrialSpec
from paceline.sweeps.planning.planned_trials import plan_trials, section_of
from paceline.sweeps.search.optuna_search import OptunaSearch
from paceline.sweeps.search.tune_trials import ListedTrials, planned_trial_of
from paceline.sweeps.trial import PlannedTrial, TrialTable
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import UploadReport

ARMS = ("grid", "random", "optuna", "asha")
FIRST, LAST = (100, 600), 500
RUNGS = (1, 4)
SHAPE = GroupShape(1, 1.0, 0.0, "pack")
CONFIG_TEXT = "key: value\n" * 150
LOOK_SECONDS = 0.2
RATIO, ANSWER_SECONDS = 1.2, 0.05
MOST_GROWTH = 10_000
"""Bytes of memory for each further trial, of a process that has its result."""
REAL_SLOTS = 2
COORDINATOR, UPLOADER = "ray::SweepCoordinator", "paceline.tracking.uploader_process"
"""In the command lines of these processes."""


def config_of(arm: str, trials: int) -> ExperimentConfig:
    """The experiment of an arm, with so many trials."""
    rate, momentum = {"uniform": [0.001, 1.0]}, {"uniform": [0.0, 0.99]}
    sections = {
        "grid": {"space": {"optimizer.lr": [0.001 * (n + 1) for n in range(trials)]}},
        "random": {"space": {"optimizer.lr": rate, "optimizer.momentum": momentum}, "search": "random"},
        "optuna": {"space": {"optimizer.lr": rate, "optimizer.momentum": momentum}, "search": "optuna"},
    }
    section: dict[str, Any] = sections.get(arm, sections["grid"])
    if "search" in section:
        section["num_samples"] = trials
    tree = {"name": "scale", "model": {"name": "mlp"}, "data": {"name": "synthetic"}}
    return validate({**tree, "sweep": {"metric": "val/loss", "mode": "min", **section}})


class Sweep:
    """A sweep without Ray: all of its parts in one event loop."""

    def __init__(self, arm: str, folder: Path, trials: int, slots: int, trial_seconds: float = 0.0) -> None:
        self.arm, self.folder, self.num_trials, self.num_slots = arm, folder, trials, slots
        self.trial_seconds = trial_seconds
        self.config = config_of(arm, trials)
        rules = SweepRules((("val/loss", "min"),), slots, 0, fresh_processes=False)
        self.coordinator = SweepCoordinator(folder, self._record("scale"), rules, trials)
        self.searcher = self._searcher()
        self.ended: list[tuple[float, float]] = []
        """Clock and CPU seconds at the end of each trial."""
        self.answers: dict[str, list[float]] = {}
        """Seconds that each answer took, by method."""
        self.memory_bytes: list[int] = []
        """Of this process, when each trial ended."""
        self._at_rungs: list[list[float]] = [[] for _ in RUNGS]
        self._table = TrialTable()
        self._listener = PlainSweepListener(Console(file=io.StringIO()), [("val/loss", "min")], trials)

    def _record(self, name: str, parent: str = "") -> RunRecord:
        artifacts = {"config.yaml": CONFIG_TEXT}
        return RunRecord(name, name, "http://127.0.0.1:9", "e", {}, artifacts=artifacts, parent=parent, picture=False)

    def _searcher(self) -> Searcher:
        if self.arm == "optuna":
            return OptunaSearch(self.config, self.num_slots, [], self._trials_of, lambda *_: None)
        planned = plan_trials(self.config).planned_trials
        assert len(planned) == self.num_trials
        return ListedTrials(planned, section_of(self.config))

    def _trials_of(self, ids: Sequence[str]) -> Sequence[Any]:
        # the coordinator's own method, without the loop that the caller is in
        call = self.coordinator.trials_of(ids)
        try:
            call.send(None)
        except StopIteration as answer:
            return answer.value  # type: ignore[no-any-return]
        raise RuntimeError("trials_of is to answer at once")

    async def run(self) -> None:
        """Run all trials."""
        await self.coordinator.prepare([SHAPE] * self.num_slots)
        slots = [asyncio.create_task(self._slot(number)) for number in range(self.num_slots)]
        driver = asyncio.create_task(self._driver())
        await asyncio.gather(*(self._tune(number) for number in range(self.num_slots)))
        driver.cancel()
        await self.coordinator.close("FINISHED", None, "", {}, 60.0)
        await asyncio.gather(*slots)

    async def _tune(self, lane: int) -> None:
        """The trials that one of Tune's trainables runs, one after the other."""
        section = section_of(self.config)
        while isinstance(given := self.searcher.suggest(f"tune-{lane}"), dict):
            planned = planned_trial_of(given, section)
            spec, number_of_rungs = self._spec(planned), 0
            while (report := await self.coordinator.run_to_rung(spec)).state == "running":
                if self._is_bad(number_of_rungs, report.values["val/loss"]):
                    await self.coordinator.prune(planned.id, "bad")
                    await self.coordinator.leave(planned.id)
                    break
                number_of_rungs += 1
            self.searcher.on_trial_complete(f"tune-{lane}", {})
            self.ended.append((time.perf_counter(), time.process_time()))
            self.memory_bytes.append(resident_bytes() if len(self.ended) % 100 == 0 else 0)

    def _is_bad(self, rung: int, loss: float) -> bool:
        seen = self._at_rungs[rung]
        bisect.insort(seen, loss)
        return len(seen) >= 4 and loss > seen[len(seen) // 4]

    def _spec(self, planned: PlannedTrial) -> TrialSpec:
        record = self._record(f"scale/{planned.id}", "scale")
        return TrialSpec(planned, SHAPE, False, b"", record, str(self.folder / "trials" / planned.id), 10, 60.0)

    async def _slot(self, slot: int) -> None:
        """A worker group, from its first trial to its last."""
        await asyncio.sleep(self.trial_seconds * slot / self.num_slots)  # groups do not start at the same moment
        generation = (await self.coordinator.view()).groups[slot].generation
        incarnation = await self.coordinator.enter(slot, generation, 0, b"")
        while incarnation is not None and (work := await self.coordinator.take(slot, generation, incarnation)):
            await self._train(work)

    async def _train(self, work: Attempt) -> None:
        coordinator, trial = self.coordinator, (work.trial_id, work.attempt)
        draw = random.Random(work.trial_id)
        loss, pause = draw.random(), self.trial_seconds / 6 * (0.5 + draw.random())
        await asyncio.sleep(pause * draw.random())  # the slots do not report at the same moments
        await coordinator.begin(*trial, "cpu")
        rungs = RUNGS if self.arm == "asha" else ()
        for step in range(1, 6):
            await asyncio.sleep(pause)
            readings = [MetricReading(step, int(time.time() * 1000), {"train/loss": loss, "val/loss": loss})]
            await self._timed("progress", *trial, step, 5.0)
            await self._timed("metrics", *trial, readings)
            await coordinator.event(*trial, "checkpoint", {"step": step, "path": f"step-{step}"})
            await self._timed("may_commit", *trial)
            values = {"step": step, "samples": step, "epochs": step, "seconds": step, "val/loss": loss}
            if step in rungs and not await coordinator.rung(*trial, values):
                await self._timed("finish", *trial, ending("stopped", loss, step))
                return
        await self._timed("finish", *trial, ending("finished", loss, 5))

    async def _driver(self) -> None:
        cursor = UNSEEN
        while True:
            view = await self._timed("view", cursor)
            cursor = view.cursor
            self._table.update(view.trials)
            self._listener.trials(self._table)
            await asyncio.sleep(LOOK_SECONDS)

    async def _timed(self, method: str, *given: Any) -> Any:
        begun = time.perf_counter()
        answer = await getattr(self.coordinator, method)(*given)
        self.answers.setdefault(method, []).append(time.perf_counter() - begun)
        return answer


def ending(status: str, loss: float, step: int) -> dict[str, Any]:
    """What a group reports at the end of a trial."""
    numbers = {"step": step, "samples": step, "epoch": 1, "samples_per_second": 5.0, "peak_memory_bytes": 7}
    return {"status": status, "metrics": {"val/loss": loss}, "weights_sha256": "ab", "checkpoint": "", **numbers}


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def without_mlflow() -> None:
    """Let the records' uploads end at once, as if all were sent."""
    report = UploadReport("http://page", "1", "run", 0, None)
    MlflowUploader.start = lambda self: None  # type: ignore[method-assign]
    MlflowUploader.finish_patiently = lambda self, seconds: report  # type: ignore[method-assign]
    MlflowUploader.report = lambda self: report  # type: ignore[method-assign]


def slow_fsync(seconds: float) -> Callable[[], None]:
    """Make each fsync take longer; returns what takes that back."""
    sync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        sync(descriptor)

    os.fsync = slow

    def restore() -> None:
        os.fsync = sync

    return restore


def run_sweep(arm: str, trials: int, slots: int, trial_seconds: float = 0.0) -> Sweep:
    """Run a sweep in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("PACELINE_STORAGE")) as folder:
        sweep = Sweep(arm, Path(folder) / "sweep", trials, slots, trial_seconds)
        asyncio.run(sweep.run())
        return sweep


def cost_part(benchmark: Benchmark, arms: Sequence[str], trials: int) -> Part:
    """What a trial costs at the beginning and at the end of a sweep."""
    rows, targets, raw = [], [], {}
    for arm in arms:
        benchmark.say(f"{arm}: {trials} trials")
        sweep = run_sweep(arm, trials, benchmark.args.slots)
        times = np.asarray(sweep.ended)
        first, last = FIRST if trials >= FIRST[1] + LAST else (trials // 10, trials // 2), min(LAST, trials // 2)
        early = (times[first[1] - 1] - times[first[0] - 1]) / (first[1] - first[0])
        late = (times[-1] - times[-1 - last]) / last
        clock, cpu = late / early
        memory = [each for each in sweep.memory_bytes if each] or [resident_bytes()]
        grown = (memory[-1] - memory[min(5, len(memory) - 1)]) / 2**20
        rows.append(
            (arm, *(f"{1000 * value:.2f}" for value in (early[1], late[1])), f"{cpu:.2f}",
             *(f"{1000 * value:.2f}" for value in (early[0], late[0])), f"{clock:.2f}",
             f"{memory[-1] / 2**20:.0f}", f"{grown:.0f}")
        )  # fmt: skip
        targets.append(Target(f"{arm}: CPU time of the last {last} trials over that of {first}", exactly(cpu), RATIO))
        raw[arm] = {"ended": times.tolist(), "memory_bytes": memory}
    columns = ("arm", "CPU ms early", "late", "ratio", "clock ms early", "late", "ratio", "MiB at the end", "grown by")
    return Part(columns, rows, targets, raw=raw)


def answer_part(benchmark: Benchmark, trials: int) -> Part:
    """How soon the coordinator answers on a slow disk."""
    args = benchmark.args
    restore = slow_fsync(args.fsync_ms / 1000)
    try:
        benchmark.say(f"answers: {trials} trials on {args.answer_slots} slots, {args.fsync_ms:g} ms for each fsync")
        sweep = run_sweep("grid", trials, args.answer_slots, args.trial_seconds)
    finally:
        restore()
    every = [seconds for own in sweep.answers.values() for seconds in own]
    rows = [answer_row(name, own) for name, own in (*sweep.answers.items(), ("all", every))]
    target = Target(
        "99th percentile of all answers in seconds", exactly(float(np.quantile(every, 0.99))), ANSWER_SECONDS
    )
    return Part(("call", "answers", "median ms", "99th percentile ms", "largest ms"), rows, [target], raw=sweep.answers)


@dataclass
class Look:
    """How far a real sweep had come at a moment, and what its processes used."""

    seconds: float
    ended: int
    driver_bytes: int
    coordinator_bytes: int
    uploader_bytes: int


def real_part(benchmark: Benchmark, trials: int) -> Part:
    """A sweep with all of its processes."""
    benchmark.say(f"real: {trials} trials on {REAL_SLOTS} slots")
    with tempfile.TemporaryDirectory(dir=os.environ.get("PACELINE_STORAGE"), ignore_cleanup_errors=True) as folder:
        looks = real_sweep(Path(folder), trials, benchmark)
    first, last = FIRST if trials >= FIRST[1] + LAST else (trials // 10, trials // 2), min(LAST, trials // 2)
    at = {
        count: next(look.seconds for look in looks if look.ended >= count) for count in (*first, trials - last, trials)
    }
    early = (at[first[1]] - at[first[0]]) / (first[1] - first[0])
    late = (at[trials] - at[trials - last]) / last
    rows = [("milliseconds of a trial", f"{1000 * early:.0f}", f"{1000 * late:.0f}", f"{late / early:.2f}")]
    targets = [Target(f"real: seconds of the last {last} trials over those of {first}", exactly(late / early), RATIO)]
    is_running = [look for look in looks if look.seconds <= at[trials]]
    for name in ("driver", "coordinator", "uploader"):
        early_looks = [look for look in looks if look.ended <= first[1]]
        before, after, most = (
            max(getattr(look, f"{name}_bytes") for look in some) for some in (early_looks, is_running, looks)
        )
        rows.append((f"MiB of the {name}", f"{before / 2**20:.0f}", f"{after / 2**20:.0f}", f"{after / before:.2f}"))
        rows.append((f"MiB of the {name}, with the final report", "", f"{most / 2**20:.0f}", f"{most / before:.2f}"))
        for text, bytes_used in (("until the last has ended", after), ("with the final report", most)):
            growth = exactly((bytes_used - before) / (trials - first[1]))
            targets.append(Target(f"bytes that the {name} grows by with each trial, {text}", growth, MOST_GROWTH))
    rows.append(("seconds until MLflow has all", "", f"{looks[-1].seconds - at[trials]:.0f}", ""))
    columns = ("figure", f"trials {first[0]} to {first[1]}", "at the end", "ratio")
    return Part(columns, rows, targets, raw=[asdict(look) for look in looks])


def real_sweep(folder: Path, trials: int, benchmark: Benchmark) -> list[Look]:
    """Run `paceline sweep`, and look at it every second.

    Raises:
        ArmFailed: the sweep did.
    """
    (folder / "sweep.yaml").write_text(yaml.safe_dump(real_config(trials)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(folder)}
    command = [sys.executable, "-m", "paceline", "sweep", "sweep.yaml", "--json"]
    looks, begun = [Look(0.0, 0, 0, 0, 0)], time.monotonic()
    with (folder / "stdout").open("w") as output, (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=errors)
        driver, ended, place = psutil.Process(process.pid), set[str](), 0
        while process.poll() is None:
            time.sleep(1.0)
            new, place = newly_ended(folder, place)
            ended |= new
            others = (sum(map(memory_of, processes(driver, mark))) for mark in (COORDINATOR, UPLOADER))
            looks.append(Look(time.monotonic() - begun, len(ended), memory_of(driver), *others))
            if len(ended) // 500 > looks[-2].ended // 500:
                benchmark.say(f"{len(ended)} trials ended")
    if process.returncode:
        raise ArmFailed("\n".join((folder / "stderr").read_text(errors="replace").splitlines()[-15:]))
    return looks


def newly_ended(folder: Path, place: int) -> tuple[set[str], int]:
    """Ids of trials that the sweep's log says have ended since a place in it, and the place to read on from."""
    for log in folder.glob("runs/*/*/log.jsonl"):
        with log.open("rb") as file:
            file.seek(place)
            whole, end, _ = file.read().rpartition(b"\n")
        entries = [json.loads(line) for line in whole.splitlines()]
        ended = {each["id"] for each in entries if each["kind"] == "trial" and each["state"] == "finished"}
        return ended, place + len(whole + end)
    return set(), place


def processes(driver: psutil.Process, mark: str) -> Iterator[psutil.Process]:
    """What the driver has started, with this in the command line."""
    with suppress(psutil.Error):
        for process in driver.children(recursive=True):
            with suppress(psutil.Error):
                if any(mark in argument for argument in process.cmdline()):
                    yield process


def memory_of(process: psutil.Process) -> int:
    """Resident bytes; 0 of one that has ended."""
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def real_config(trials: int) -> dict[str, Any]:
    """A tiny network, trained on random numbers for two steps."""
    sizes = {"num_samples": 64, "num_validation_samples": 32, "global_batch_size": 32}
    return {
        "name": "scale",
        "model": {"name": "mlp", "in_features": 8, "hidden": [16], "num_classes": 4},
        "data": {"name": "synthetic", "shape": [8], "num_classes": 4, **sizes},
        "trainer": {"epochs": 1},
        "scaling": {"num_workers": 1, "cpus_per_worker": 0.5, "use_gpu": False},
        "tracking": {"uri": "sqlite:///mlflow.db"},
        "sweep": {
            "space": {"optimizer.lr": {"loguniform": [0.001, 1.0]}, "optimizer.momentum": {"uniform": [0.0, 0.9]}},
            "search": "random",
            "num_samples": trials,
            "metric": "val/loss",
            "slots": REAL_SLOTS,
        },
    }


def answer_row(name: str, seconds: Sequence[float]) -> tuple[object, ...]:
    """How long the answers to a call took."""
    return name, len(seconds), *(f"{1000 * np.quantile(seconds, share):.1f}" for share in (0.5, 0.99, 1.0))


def main() -> int:
    """Run the benchmark."""
    benchmark = Benchmark("sweep_scale", __doc__, ("paceline", "ray", "optuna"), ARMS, ("cost", "answers", "real"))
    benchmark.number("--trials", 5000, 300, "trials of each arm", 20)
    benchmark.number("--slots", 4, 4, "slots, for the cost of a trial")
    benchmark.number("--answer-slots", 64, 8, "slots, for the answers")
    benchmark.number("--answer-trials", 640, 16, "trials, for the answers")
    benchmark.number("--trial-seconds", 6.0, 0.2, "how long each of these takes", 0)
    benchmark.number("--fsync-ms", 20.0, 20.0, "how long an fsync takes, for the answers", 0)
    args = benchmark.parse()
    without_mlflow()
    parts, wanted = {}, args.parts or ("cost", "answers")
    if "cost" in wanted:
        parts["Cost of a trial"] = cost_part(benchmark, args.arms or ARMS, args.trials)
    if "answers" in wanted:
        parts["Answers on a slow disk"] = answer_part(benchmark, args.answer_trials)
    if "real" in wanted:
        parts["A real sweep"] = real_part(benchmark, args.trials)
    return benchmark.finish(parts)


if __name__ == "__main__":
    sys.exit(main())
