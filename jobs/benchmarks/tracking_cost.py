"""What recording a run costs the process that trains: calls, their share of a step, and the wall time of a training.

    uv run python jobs/benchmarks/tracking_cost.py [--parts calls share wall] [--rounds 12] [--epochs 15]

All of it on CPU, against a real `mlflow server` on this machine, which runs on cores that the training would also like
to have: on a machine with few of them the third part is the hardest case. Needs two cores; takes some ten minutes.

calls   10,000 metric points, 10 at each of 1,000 steps. `paceline`: the time within the reporter's calls, as rank 0
        pays it; when they are durable, and when MLflow has them, is told beside. `log_metric`: `--calls` calls of
        `mlflow.log_metric`, one after the other, into a SQLite database and to the server, scaled to 10,000.
share   the training of configs/mnist_cnn.yaml in one process: time within the reporter's calls over that of the
        training loop, by the clock and by the CPU time of the thread, with a point of each metric at every step and at
        every tenth one.
wall    the same training with everything recorded (`on`), and with a reporter that drops it (`off`, twice). A round is
        a training of each, in a new random order. The table shows the wall time over that of `off` in the same round:
        the median over the rounds with its 95 % bootstrap interval. `off again` is this machine's noise; `on` is as
        good as free when its interval reaches into that one. `paceline train` starts the process that talks to MLflow
        before it imports torch, so that it has come up when training begins; so has it for `on`. For `on, cold` it
        comes up, some seconds of CPU time at low priority, while training is under way already.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from measuring import bootstrap, cpu_name

from paceline.cluster.assignment import Assignment
from paceline.cluster.desk import Desk
from paceline.cluster.reporters import DeskReporter
from paceline.config import load_config
from paceline.config.experiment import ExperimentConfig
from paceline.engine.reporter import MemoryReporter, Reporter
from paceline.tracking.cursor import CURSOR_FILE, Cursor
from paceline.tracking.record import RunRecord
from paceline.tracking.server import free_port, start_server, stop_server, wait_until_up

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "mnist_cnn.yaml"
STEPS, METRICS = 1_000, 10
POINTS = STEPS * METRICS
CLOSE_SECONDS = 240.0
PACKAGES = ("torch", "mlflow", "paceline")
AIM_CALLS, AIM_SHARE = 20.0, 0.01


class Ratio(NamedTuple):
    """A median over rounds, and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def overlaps(self, other: "Ratio") -> bool:
        """Whether the intervals have something in common."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.median:.4f} [{self.low:.4f}, {self.high:.4f}]"


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
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_server(server)


# --- calls -------------------------------------------------------------------------------------------------------


def measure_calls(folder: Path, uri: str, calls: int) -> dict[str, float]:
    """Seconds for 10,000 points: within our calls, and by `mlflow.log_metric`."""
    return {
        **our_calls(folder / "calls", uri),
        "log_metric, SQLite": log_metric_seconds(f"sqlite:///{folder / 'direct.db'}", calls),
        "log_metric, server": log_metric_seconds(uri, calls),
    }


def our_calls(folder: Path, uri: str) -> dict[str, float]:
    """Seconds for 10,000 points by way of the reporter of a training process."""
    desk = Desk(folder, RunRecord("calls", "calls", uri, "calls", picture=False), ships_apart=True)
    desk.ship()
    reporter = DeskReporter(desk, lambda: None)
    values = {f"metric/{number}": 0.5 for number in range(METRICS)}
    began = perf_counter()
    for step in range(1, STEPS + 1):
        reporter.metrics(step, values)
    within = perf_counter() - began
    if not reporter.recorded(60):
        raise SystemExit("the points could not be recorded")
    durable = perf_counter() - began
    reporter.close()
    report = desk.close("FINISHED", None, CLOSE_SECONDS)
    if report["unsent"]:
        raise SystemExit(f"MLflow does not have everything: {report['error']}")
    return {"paceline": within, "paceline, durable": durable, "paceline, in MLflow": perf_counter() - began}


def log_metric_seconds(uri: str, calls: int) -> float:
    """Seconds for 10,000 points by MLflow's own call, from so many of them."""
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


# --- trainings ---------------------------------------------------------------------------------------------------


def config_of(epochs: int, log_every: int) -> ExperimentConfig:
    """The shipped example in one process."""
    changes = {"scaling.num_workers": 0, "scaling.use_gpu": False, "trainer.epochs": epochs}
    return load_config(CONFIG, {**changes, "trainer.log_every_n_steps": log_every})


def train_once(config: ExperimentConfig, folder: Path, reporter: Reporter) -> float:
    """Train from scratch in this process; seconds from building the model to the end."""
    import torch

    from paceline.cluster.worker import run_here

    assignment = Assignment(config_json=config.model_dump_json(), objects={}, checkpoints=str(folder / "checkpoints"))
    began = perf_counter()
    ending = run_here(assignment, torch.device("cpu"), reporter)
    seconds = perf_counter() - began
    if ending["status"] != "finished":
        raise SystemExit(f"training failed: {ending}")
    return seconds


@contextmanager
def recording(folder: Path, uri: str, name: str) -> Iterator[tuple[DeskReporter, float]]:
    """A reporter as training in this process has it, and how long it took to set up; MLflow has it all afterwards."""
    began = perf_counter()
    desk = Desk(folder / "tracking", RunRecord(folder.name, name, uri, name, picture=False), ships_apart=True)
    reporter = DeskReporter(desk, lambda: None)
    desk.begin("cpu")
    yield reporter, perf_counter() - began
    reporter.close()
    report = desk.close("FINISHED", None, CLOSE_SECONDS)
    if report["unsent"]:
        raise SystemExit(f"MLflow does not have everything: {report['error']}")


def await_run(run: Path) -> None:
    """Wait until MLflow has a run of this name."""
    deadline = time.monotonic() + CLOSE_SECONDS
    while not Cursor.load(run / "tracking" / CURSOR_FILE).run_id:
        if time.monotonic() > deadline:
            raise SystemExit("MLflow does not have the run in time")
        time.sleep(0.05)


def measure_share(folder: Path, uri: str, epochs: int) -> dict[str, dict[str, float]]:
    """Share of the training's time that lies within the reporter's calls."""
    shares = {}
    for log_every in (1, 10):
        run = folder / f"share-{log_every}"
        with recording(run, uri, "share") as (reporter, _):
            timed = Timed(reporter)
            cpu = thread_time()
            seconds = train_once(config_of(epochs, log_every), run, timed)  # type: ignore[arg-type]
            cpu = thread_time() - cpu
        shares[f"log_every_n_steps {log_every}"] = {
            "by clock": timed.clock / seconds,
            "by cpu time": timed.cpu / cpu,
            "microseconds a call": 1e6 * timed.clock / timed.calls,
        }
    return shares


def measure_wall(folder: Path, uri: str, epochs: int, rounds: int) -> dict[str, list[float]]:
    """Wall seconds of trainings, by arm, a value for each round."""

    def off(run: Path) -> float:
        return train_once(config, run, Dropping())

    def on(run: Path) -> float:
        with recording(run, uri, "wall") as (reporter, _):
            await_run(run)
            return train_once(config, run, reporter)

    def cold(run: Path) -> float:
        with recording(run, uri, "wall") as (reporter, set_up):
            return set_up + train_once(config, run, reporter)

    config = config_of(epochs, 10)
    arms: dict[str, Callable[[Path], float]] = {"off": off, "off again": off, "on": on, "on, cold": cold}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    off(folder / "warm-up")
    for number in range(rounds):
        for name in random.sample(list(arms), len(arms)):
            seconds[name].append(arms[name](folder / f"{name}-{number}"))
        told = ", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items())
        print(f"round {number + 1}: {told}", file=sys.stderr, flush=True)
    return seconds


def ratio(values: Sequence[float], others: Sequence[float]) -> Ratio:
    """Median of the ratios of paired values, with its interval."""
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    return Ratio(statistics.median(ratios), *bootstrap(ratios))


# --- what it comes to --------------------------------------------------------------------------------------------


def table(found: dict[str, Any], where: dict[str, Any]) -> str:
    """What was measured, what is aimed at, and the surroundings under it."""
    lines: list[str] = []
    if calls := found.get("calls"):
        lines += [f"{f'seconds for {POINTS:,} points':44} {'value':>9}"]
        lines += [f"{name:44} {seconds:9.3f}" for name, seconds in calls.items()] + [""]
    for name, share in found.get("share", {}).items():
        told = ", ".join(f"{100 * share[by]:.3f} % {by}" for by in ("by clock", "by cpu time"))
        lines.append(f"{f'within calls, {name}':44} {told} ({share['microseconds a call']:.1f} us a call)")
    if wall := found.get("wall"):
        lines += ["", f"{'wall time over that of off':44} {'median, 95 % interval':>24} {'seconds':>9}"]
        for name, values in wall.items():
            lines.append(f"{name:44} {ratio(values, wall['off'])!s:>24} {statistics.median(values):9.2f}")
    lines += [
        "",
        f"{'aimed at':44} {'value':>24}",
        *(f"{text:44} {value:>24}  {told}" for text, value, told in aims(found)),
    ]
    return "\n".join([*lines, "", ", ".join(f"{key} {value}" for key, value in where.items())])


def aims(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What is aimed at, what was measured, and whether that is met."""
    lines = []
    if calls := found.get("calls"):
        least = min(seconds for name, seconds in calls.items() if name.startswith("log_metric")) / calls["paceline"]
        lines.append((f"times cheaper than log_metric, {AIM_CALLS:g}", f"{least:.0f}", told(least >= AIM_CALLS)))
    if shares := found.get("share"):
        most = max(share["by clock"] for share in shares.values())
        lines.append((f"share of a step, at most {AIM_SHARE:.0%}", f"{most:.3%}", told(most <= AIM_SHARE)))
    if wall := found.get("wall"):
        on, noise = ratio(wall["on"], wall["off"]), ratio(wall["off again"], wall["off"])
        lines.append(("wall time within the noise", str(on), told(on.overlaps(noise))))
    return lines


def told(is_met: bool) -> str:
    """In a word."""
    return "met" if is_met else "not met"


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """Where, with what and when this was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "rounds": args.rounds,
        "epochs": args.epochs,
        "calls": args.calls,
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("calls", "share", "wall")
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=parts, help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=12, help="of the part wall, at least 3 (%(default)s)")
    parser.add_argument("--epochs", type=int, default=15, help="of each training, 19 steps each (%(default)s)")
    parser.add_argument("--calls", type=int, default=200, help="of mlflow.log_metric (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON, with every value")
    args = parser.parse_args()
    if args.rounds < 3:
        parser.error("--rounds must be at least 3")
    where = surroundings(args)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as uri:
        folder = Path(name)
        time.sleep(2)  # the server has a little left to do once it answers
        if "wall" in args.parts:  # first: MLflow is not imported in this process yet, as in a user's
            found["wall"] = measure_wall(folder, uri, args.epochs, args.rounds)
        if "share" in args.parts:
            found["share"] = measure_share(folder, uri, args.epochs)
        if "calls" in args.parts:
            found["calls"] = measure_calls(folder, uri, args.calls)
    print(json.dumps({**found, **where}, indent=2) if args.json else table(found, where))


if __name__ == "__main__":
    main()
