"""Record how the step times of one training scatter here, for the tests of the statistics.

    uv run --group bench python jobs/benchmarks/record_step_times.py --json step_times.json

Two trainings of the same small CNN by the engine take turns in one process, in random order within each pair of turns:
an A/A duel. Each turn is several readings of `--steps` steps. This is repeated in `--processes` fresh processes under
each of three conditions: `quiet`, and with one and with two neighbours, each of which loads a core in bursts of
exponentially distributed length, busy for 1 s and idle for 0.5 s on average. The result is one JSON object: for each
condition where and when it was recorded, and its processes, and for each of these which training had which turn and the
milliseconds of its readings, in the order in which they were taken. Takes some three minutes for each condition; those
that the file has already and that are not asked for stay in it.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from loop_overhead import BATCH, LOG_EVERY, Turns, make_data, paceline, quiet, small_cnn, without_gc
from measuring import cpu_name

CONDITIONS = {"quiet": 0, "one_neighbour": 1, "two_neighbours": 2}
"""How many busy neighbours each has."""

READINGS_PER_TURN = 10
WARM_UP_TURNS = 4
STEPS_PER_EPOCH = 500

NEIGHBOUR = """
import os, random, sys, time
draw, parent = random.Random(int(sys.argv[1])), os.getppid()
while os.getppid() == parent:
    end = time.perf_counter() + draw.expovariate(1.0)
    while time.perf_counter() < end:
        sum(range(1000))
    time.sleep(draw.expovariate(2.0))
"""
"""Ends by itself when its parent has ended."""


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Busy processes beside this one, while the context lasts."""
    started = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(seed)]) for seed in range(count)]
    try:
        yield
    finally:
        for each in started:
            each.terminate()
            each.wait()


def record(seed: int, seconds: float, steps: int) -> dict[str, Any]:
    """The turns of two equal trainings in this process: whose each was, and the milliseconds of its readings."""
    quiet()
    draw = random.Random(seed)
    data = make_data(STEPS_PER_EPOCH * BATCH)
    arms = [Turns(paceline(small_cnn(), data, epochs=100_000), steps // LOG_EVERY) for _ in range(2)]
    for _ in range(WARM_UP_TURNS):
        for arm in arms:
            turn(arm)
    owners: list[int] = []
    readings: list[list[float]] = []
    start = perf_counter()

    def pair() -> None:
        for owner in draw.sample([0, 1], 2):
            owners.append(owner)
            readings.append(turn(arms[owner]))

    while perf_counter() - start < seconds:
        without_gc(pair)
    return {"owners": owners, "milliseconds": readings}


def turn(arm: Turns) -> list[float]:
    """Milliseconds of each reading of one turn."""
    for _ in range(READINGS_PER_TURN):
        arm.take()
    return [round(1000 * spent.clock, 2) for spent in arm.spent[-READINGS_PER_TURN:]]


def under(condition: str, processes: int, seconds: float, steps: int) -> list[dict[str, Any]]:
    """What the processes recorded under a condition, one after the other."""
    recorded = []
    for seed in range(processes):
        with neighbours(CONDITIONS[condition]), get_context("spawn").Pool(1) as pool:
            recorded.append(pool.apply(record, (seed, seconds, steps)))
        print(f"{condition}: process {seed + 1} of {processes}", file=sys.stderr, flush=True)
    return recorded


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """Where, with what and when this was recorded."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "batch": BATCH,
        "steps_per_reading": args.steps,
        "threads": 1,
    }


def main() -> None:
    """Record all conditions, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS, help="only these")
    parser.add_argument("--processes", type=int, default=2, help="under each condition (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=75.0, help="of each process (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of a reading, a multiple of 10 (default: %(default)s)")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where to write")
    args = parser.parse_args()
    if args.processes < 1 or args.steps < LOG_EVERY or args.steps % LOG_EVERY:
        parser.error(f"--processes must be at least 1, and --steps a multiple of {LOG_EVERY}")
    recorded = json.loads(args.json.read_text()) if args.json.exists() else {}
    for name in args.conditions:
        recorded[name] = {**surroundings(args), "processes": under(name, args.processes, args.seconds, args.steps)}
        args.json.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
