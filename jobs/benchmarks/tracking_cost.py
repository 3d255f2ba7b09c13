"""What recording a run costs the process that trains: calls, their share of a step, and the wall time of a training.

    uv run python jobs/benchmarks/tracking_cost.py

All of it on CPU, against a real `mlflow server` on this machine, which takes cores that the training would also use: on
a machine with few of them the part `wall` is the hardest case. Needs two cores; takes some ten minutes.

calls   10,000 metric points, 10 at each of 1,000 steps. `paceline`: the time within the reporter's calls, as rank 0
        pays it; beside it until they are durable, and until MLflow has them. `log_metric`: `--calls` calls of
        `mlflow.log_metric`, one after the other, into a SQLite database and to the server, scaled to 10,000.
share   the training of configs/mnist_cnn.yaml in one process: time within the reporter's calls over that of the
        training loop, by the clock and by the CPU time of the thread, with a point of each metric at every step and at
        every tenth one.
wall    the same training with everything recorded (`on`), and with a reporter that drops it (`off`, `off again`). Shown
        is the wall time over that of `off` in the same round. `off again` (A/A) is the noise; no cost can be seen when
        the intervals of `on` and `off again` overlap. As with `paceline train`, the process that sends to MLflow is up
        when training begins.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from harness import Benchmark, Part, Target, exactly, ratio, take_turns

from paceline.cluster.reporters import InProcessReporter
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config import load_config
from paceline.config.experiment import ExperimentConfig
from paceline.engine.reporter import MemoryReporter, Reporter
from paceline.tracking.mlflow_server import free_port, start_server, stop_server, wait_until_up
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "mnist_cnn.yaml"
STEPS, METRICS, POINTS = 1_000, 10, 10_000
CLOSE_SECONDS = 240.0
TIMES_CHEAPER, MOST_SHARE = 20.0, 0.01


class Dropping(MemoryReporter):
    """Takes everything and keeps nothing."""

    def metrics(self, step: int, values: Any) -> None: ...

    def event(self, kind: str, **details: Any) -> None: ...


class Timed:
    """A reporter that adds up the time within the calls of the training thread to another one."""

    def __init__(self, inner: Reporter) -> None:
        self._inner = inner
        self.clock = self.cpu = 0.0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in ("recorded", "unrecorded", "rung"):  # called by other threads, or to be waited for
            return method

        def timed(*given: Any, **named: Any) -> Any:
            clock, cpu = perf_counter(), thread_time()
            try:
                return method(*given, **named)
            finally:
                self.clock += perf_counter() - clock
                self.cpu += thread_time() - cpu
                self.calls += 1

        return timed


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server on a database of its own; its address."""
    port = free_port(15_600)
    server = start_server(f"sqlite:///{folder / 'server.db'}", port, log=folder / "server.log")
    try:
        wait_until_up(server, f"http://127.0.0.1:{port}", 240)
        time.sleep(2)  # it has a little left to do once it answers
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_server(server)


@contextmanager
def recording(folder: Path, uri: str) -> Iterator[InProcessReporter]:
    """A reporter as training in this process has it; MLflow has it all afterwards."""
    coordinator = RunCoordinator(
        folder, RunRecord(folder.parent.name, "cost", uri, "cost", picture=False), uploads_in_own_process=True
    )
    reporter = InProcessReporter(coordinator, lambda: None)
    coordinator.begin("cpu")
    yield reporter
    reporter.close()
    report = coordinator.close("FINISHED", None, CLOSE_SECONDS)
    if report["unsent"]:
        raise SystemExit(f"MLflow does not have everything: {report['error']}")


def measure_calls(folder: Path, uri: str, calls: int) -> Part:
    """Seconds for 10,000 points: within our calls, and by `mlflow.log_metric`."""
    seconds = {
        **paceline_seconds(folder / "calls" / "tracking", uri),
        "log_metric, SQLite": log_metric_seconds(f"sqlite:///{folder / 'direct.db'}", calls),
        "log_metric, server": log_metric_seconds(uri, calls),
    }
    cheaper = min(each for name, each in seconds.items() if name.startswith("log_metric")) / seconds["paceline"]
    target = Target("times cheaper than log_metric", exactly(cheaper), least=TIMES_CHEAPER)
    rows = [(name, f"{each:.3f}") for name, each in seconds.items()]
    return Part((f"{POINTS:,} points by", "seconds"), rows, [target], raw=seconds)


def paceline_seconds(folder: Path, uri: str) -> dict[str, float]:
    """By way of the reporter of a training process."""
    values = {f"metric/{number}": 0.5 for number in range(METRICS)}
    with recording(folder, uri) as reporter:
        began = perf_counter()
        for step in range(1, STEPS + 1):
            reporter.metrics(step, values)
        within = perf_counter() - began
        if not reporter.recorded(60):
            raise SystemExit("the points could not be recorded")
        durable = perf_counter() - began
    return {"paceline": within, "paceline, until durable": durable, "paceline, until in MLflow": perf_counter() - began}


def log_metric_seconds(uri: str, calls: int) -> float:
    """By MLflow's own call, scaled from so many of them."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("direct")
    with mlflow.start_run():
        mlflow.log_metric("warm", 0.0, step=0)
        began = perf_counter()
        for step in range(calls):
            mlflow.log_metric("metric", 0.5, step=step)
        seconds = perf_counter() - began
    return seconds / calls * POINTS


def config_of(epochs: int, log_every: int) -> ExperimentConfig:
    """The shipped example in one process."""
    changes = {"scaling.num_workers": 0, "scaling.use_gpu": False, "trainer.epochs": epochs}
    return load_config(CONFIG, {**changes, "trainer.log_every_n_steps": log_every})


def train_once(config: ExperimentConfig, folder: Path, reporter: Any) -> float:
    """Train from scratch in this process; seconds from building the model to the end."""
    import torch

    from paceline.cluster.train_worker import run_here

    assignment = WorkerSpec(config_json=config.model_dump_json(), objects={}, checkpoints=str(folder / "checkpoints"))
    began = perf_counter()
    ending = run_here(assignment, torch.device("cpu"), reporter)
    assert ending["status"] == "finished", ending
    return perf_counter() - began


def measure_share(folder: Path, uri: str, epochs: int) -> Part:
    """Share of the training's time that lies within the reporter's calls."""
    rows, raw = [], {}
    for log_every in (1, 10):
        run = folder / f"share-{log_every}"
        with recording(run / "tracking", uri) as reporter:
            timed, cpu = Timed(reporter), thread_time()
            seconds = train_once(config_of(epochs, log_every), run, timed)
            raw[log_every] = timed.clock / seconds, timed.cpu / (thread_time() - cpu)
        shares = [f"{share:.3%}" for share in raw[log_every]]
        rows.append((log_every, *shares, f"{1e6 * timed.clock / timed.calls:.1f}"))
    target = Target("share of the training's time", exactly(max(clock for clock, _ in raw.values())), most=MOST_SHARE)
    return Part(("log_every_n_steps", "by clock", "by CPU time", "us a call"), rows, [target], raw=raw)


def measure_wall(folder: Path, uri: str, epochs: int, rounds: int, benchmark: Benchmark) -> Part:
    """Wall seconds of trainings, each of which begins with nothing."""
    config = config_of(epochs, 10)

    def off() -> float:
        return train_once(config, Path(tempfile.mkdtemp(dir=folder)), Dropping())

    def on() -> float:
        run = Path(tempfile.mkdtemp(dir=folder))
        with recording(run / "tracking", uri) as reporter:
            deadline = time.monotonic() + CLOSE_SECONDS
            while not UploadCursor.load(run / "tracking" / CURSOR_FILE).run_id:  # until MLflow has the run
                if time.monotonic() > deadline:
                    raise SystemExit("MLflow does not have the run in time")
                time.sleep(0.05)
            return train_once(config, run, reporter)

    off()  # what only the first training of a process has to do
    arms: dict[str, Callable[[], float]] = {"off": off, "off again": off, "on": on}
    seconds, _ = take_turns(arms, rounds, after_round=benchmark.say_round)
    ratios = {name: ratio([values], [seconds["off"]]) for name, values in seconds.items()}
    rows = [(name, f"{statistics.median(seconds[name]):.2f}", each) for name, each in ratios.items()]
    free = ratios["on"].low <= ratios["off again"].high
    note = f"wall time with recording is {'within' if free else 'ABOVE'} the noise of off again"
    return Part(("training", "median seconds", "ratio to off"), rows, notes=[note], raw=seconds)


def main() -> int:
    """Measure, and print the tables."""
    parts = ("wall", "share", "calls")
    benchmark = Benchmark("tracking_cost", __doc__, ("torch", "mlflow", "paceline"), parts=parts)
    benchmark.number("--rounds", 12, 1, "of the part wall")
    benchmark.number("--epochs", 15, 1, "of each training, 19 steps each")
    benchmark.number("--calls", 200, 5, "of mlflow.log_metric")
    args = benchmark.parse()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    # MLflow prints where its runs are
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as uri, redirect_stdout(sys.stderr):
        measures = {  # wall first: MLflow is not imported in this process yet, as in a user's
            "wall": lambda: measure_wall(Path(name), uri, args.epochs, args.rounds, benchmark),
            "share": lambda: measure_share(Path(name), uri, args.epochs),
            "calls": lambda: measure_calls(Path(name), uri, args.calls),
        }
        found = {part: measure() for part, measure in measures.items() if part in (args.parts or parts)}
    return benchmark.finish(found)


if __name__ == "__main__":
    sys.exit(main())
