"""The harness that all benchmarks share: arms in turn, paired ratios with intervals, targets, tables and the record.

Order     Each round runs every arm once. A round has a random order and the next round the reverse of it (A B B A), so
          that a machine that gets slower or faster does so for all arms alike.
A/A       One arm is the baseline a second time (`... again`). How far its ratio is from 1 is the noise of the machine.
Ratio     An arm over the baseline in the same round: median over the rounds of a process, mean of it over processes.
Interval  95 %, Student's t over the processes. With one process it is a bootstrap of its rounds (percentiles): it says
          nothing of how processes differ.
Verdict   `met` or `not met` when the whole interval is on one side of the target, else `not decided`.
Record    Tables, all raw values, hardware, versions, options, commit and date.
"""

import argparse
import json
import math
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

# Read when Ray is imported. Under `uv run` its hook would start each worker through uv, in a copy of the folder.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

RESAMPLES = 5000
FOLDER = os.path.dirname(os.path.abspath(__file__))
RECORDS = Path(FOLDER).parents[1] / "docs" / "records"
COMMAND_SECONDS = 3600.0

Value = TypeVar("Value")


# --- statistics --------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:  # one measurement, or no scatter at all
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"


def exactly(value: float) -> Interval:
    """A figure of which nothing is known but itself."""
    return Interval(value, value, value)


def estimate(processes: Sequence[Sequence[float]]) -> Interval:
    """Mean over processes of the median of each one's values; always the same for the same values.

    How the medians of the processes scatter includes how the rounds do. To draw both, processes and rounds within them,
    counts that twice.

    Raises:
        ValueError: there are no processes.
    """
    if not processes:
        raise ValueError("nothing was measured")
    medians = np.array([np.median(values) for values in processes])
    value = float(medians.mean())
    if len(medians) == 1:
        values = np.asarray(processes[0], dtype=np.float64)
        drawn = np.median(np.random.default_rng(0).choice(values, (RESAMPLES, len(values))), axis=1)
        return Interval(value, *map(float, np.quantile(drawn, [0.025, 0.975])))
    from scipy.special import stdtrit

    half = float(stdtrit(len(medians) - 1, 0.975) * medians.std(ddof=1) / math.sqrt(len(medians)))
    return Interval(value, value - half, value + half)


def ratio(arm: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]]) -> Interval:
    """Values of an arm over those of the baseline in the same rounds; both by process and round."""
    pairs = [zip(mine, theirs, strict=True) for mine, theirs in zip(arm, baseline, strict=True)]
    return estimate([[own / other for own, other in each] for each in pairs])


class Seconds(NamedTuple):
    """What a turn took."""

    clock: float
    cpu: float


def loop_rows(
    processes: Sequence[tuple[Mapping[str, Sequence[Seconds]], Mapping[str, float]]], steps: int, as_speed: bool = False
) -> list[tuple[str, str, Interval, Interval, str]]:
    """For each arm: milliseconds a step, the ratio to the first arm by clock and by CPU time, and the final weights.
    The ratio is one of time, or of speed. A process has, by arm, the turns and how far the weights are off.
    """
    rows = []
    first = next(iter(processes[0][0]))
    for name in processes[0][0]:
        ratios = []
        for by in (0, 1):
            mine, theirs = ([[turn[by] for turn in spent[arm]] for spent, _ in processes] for arm in (name, first))
            ratios.append(ratio(theirs, mine) if as_speed else ratio(mine, theirs))
        milliseconds = 1000 * np.median([turn.clock for spent, _ in processes for turn in spent[name]]) / steps
        difference = max(differences[name] for _, differences in processes)
        weights = f"differ by {difference:.1e}" if difference else "equal to the bit"
        rows.append((name, f"{milliseconds:.3f}", ratios[0], ratios[1], weights))
    return rows


class Target(NamedTuple):
    """A bar, and the figure that is compared with it."""

    text: str
    value: Interval | None
    """None: not measured."""
    most: float = math.inf
    least: float = -math.inf

    @property
    def verdict(self) -> str:
        """Whether the figure keeps the bar, as far as its interval tells."""
        if self.value is None:
            return "not measured"
        if self.least <= self.value.low and self.value.high <= self.most:
            return "met"
        return "not met" if self.value.low > self.most or self.value.high < self.least else "not decided"

    def __str__(self) -> str:
        bar = f"at most {self.most:g}" if self.most < math.inf else f"at least {self.least:g}"
        value = "" if self.value is None else f"{self.value}, "
        return f"{self.text}: {value}target {bar}: {self.verdict}"


# --- arms --------------------------------------------------------------------------------------------------------


class ArmFailed(Exception):
    """An arm could not be measured: the reason, and the end of what it wrote."""


def orders(names: Sequence[str], rounds: int, seed: int = 0) -> Iterator[list[str]]:
    """The order of the arms in each round: drawn at random, then reversed, and so on (A B B A)."""
    draw = random.Random(seed)
    order: list[str] = []
    for number in range(rounds):
        order = order[::-1] if number % 2 else draw.sample(names, len(names))
        yield order


def take_turns(
    arms: Mapping[str, Callable[[], Value]],
    rounds: int,
    seed: int = 0,
    after_round: Callable[[int, Mapping[str, list[Value]]], None] | None = None,
) -> tuple[dict[str, list[Value]], dict[str, str]]:
    """What each arm returns, a value for each round; and the reasons of those that failed.

    An arm that raises `ArmFailed` takes no further turn, and none of its values is returned.
    """
    values: dict[str, list[Value]] = {name: [] for name in arms}
    failures: dict[str, str] = {}
    for number, order in enumerate(orders(list(arms), rounds, seed), 1):
        for name in order:
            if name in failures:
                continue
            try:
                values[name].append(arms[name]())
            except ArmFailed as failure:
                failures[name] = str(failure)
                del values[name]
        if after_round is not None:
            after_round(number, values)
    return values, failures


def run_command(command: Sequence[str], folder: Path, limit_seconds: float = COMMAND_SECONDS) -> tuple[float, float]:
    """Run a process on one thread in a folder, where Ray's own files go too; its start and end in seconds since 1970.

    Raises:
        ArmFailed: it failed, or took too long and was ended; with the last lines of its stderr.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(folder)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    # files, since Ray's processes hold on to pipes for longer than their driver lives
    with (folder / "stdout").open("w") as output, (folder / "stderr").open("w") as errors:
        start = time.time()
        try:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdout=output, stderr=errors, timeout=limit_seconds
            ).returncode
            end, reason = time.time(), f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, end, reason = 1, time.time(), f"took more than {limit_seconds:g} s"
    if code:
        last = (folder / "stderr").read_text(errors="replace").splitlines()[-15:]
        raise ArmFailed("\n".join([reason, *last]))
    return start, end


# --- report ------------------------------------------------------------------------------------------------------


@dataclass
class Part:
    """A table with its targets, and the raw values behind it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    targets: Sequence[Target] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    """Arms that could not be measured or did not do what they should, with the reason: exit code 1."""
    notes: Sequence[str] = ()
    raw: Any = None
    """All values, as JSON has them."""

    def markdown(self) -> str:
        """The table, and under it notes, targets and failures."""
        cells = [[str(cell) for cell in row] for row in [self.columns, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        lines.insert(1, " | ".join("-" * width for width in widths))
        below = [*self.notes, *map(str, self.targets), *(f"FAILED: {arm}: {why}" for arm, why in self.failures.items())]
        return "\n".join([*(f"| {line} |" for line in lines), "", *(f"- {line}" for line in below)]).rstrip()

    def plain(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        targets = [{**each._asdict(), "verdict": each.verdict} for each in self.targets]
        return {"markdown": self.markdown(), "targets": targets, "failures": dict(self.failures), "raw": self.raw}


class Benchmark:
    """One run of a benchmark: its command line, its progress, and its report.

    `arms` and `parts` are the names that `--arms` and `--parts` take; the versions of `packages` are recorded.
    """

    def __init__(
        self, name: str, text: str | None, packages: Sequence[str], arms: Sequence[str] = (), parts: Sequence[str] = ()
    ) -> None:
        self.name, self._packages, self._load = name, packages, round(os.getloadavg()[0], 2)
        self._numbers: dict[str, tuple[float, float, float]] = {}
        self.parser = argparse.ArgumentParser(
            description=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if parts:
            self.parser.add_argument("--parts", nargs="+", choices=parts, help="only these")
        if arms:
            self.parser.add_argument("--arms", nargs="+", metavar="ARM", choices=arms, help="only these")
        self.parser.add_argument("--quick", action="store_true", help="a smoke test: its figures mean nothing")
        self.parser.add_argument("--json", action="store_true", help="print JSON, with all raw values")
        text = "write a folder in FOLDER (default: docs/records)"
        self.parser.add_argument("--record", nargs="?", type=Path, const=RECORDS, metavar="FOLDER", help=text)

    def number(self, flag: str, normal: float, quick: float, text: str, least: float = 1) -> None:
        """Add a number to the command line: by default `normal`, or `quick` with `--quick`, and never below `least`."""
        kind = float if isinstance(normal, float) else int
        self._numbers[flag.strip("-").replace("-", "_")] = (normal, quick, least)
        self.parser.add_argument(flag, type=kind, metavar="N", help=f"{text} ({normal:g}; quick: {quick:g})")

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Read the command line."""
        self.args = self.parser.parse_intermixed_args(arguments)
        for name, (normal, quick, least) in self._numbers.items():
            if getattr(self.args, name) is None:
                setattr(self.args, name, quick if self.args.quick else normal)
            if getattr(self.args, name) < least:
                self.parser.error(f"--{name.replace('_', '-')} must be at least {least:g}")
        return self.args

    def say(self, line: str) -> None:
        """Report progress, on stderr."""
        print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)

    def say_round(self, number: int, values: Mapping[str, Sequence[object]]) -> None:
        """Report a round of `take_turns`."""
        last = ", ".join(f"{name} {each[-1]:.4g}" for name, each in values.items() if each)
        self.say(f"round {number}: {last}")

    def finish(self, parts: Mapping[str, Part]) -> int:
        """Print the report, record it on request, and return the exit code."""
        where = self.environment()
        found = {title: {**part.plain(), "environment": where} for title, part in parts.items()}
        print(json.dumps(found, indent=2) if self.args.json else page(found))
        if self.args.record:
            self.say(f"recorded in {write_record(self.args.record, self.name, found)}")
        return int(any(part.failures for part in parts.values()))

    def environment(self) -> dict[str, Any]:
        """Hardware, versions, options, commit and date."""
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "cpu": output_of("grep", "-m1", "^model name", "/proc/cpuinfo").partition(": ")[2] or platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "gpu": output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or "no GPU",
            "load_average": self._load,
            "versions": {"Python": platform.python_version(), **{name: version_of(name) for name in self._packages}},
            "commit": output_of("git", "-C", FOLDER, "describe", "--always", "--dirty") or "unknown",
            "command": shlex.join([f"jobs/benchmarks/{self.name}.py", *sys.argv[1:]]),
            # records are public: where this repository lies is nobody's business
            "options": {
                key: str(value).replace(f"{RECORDS.parents[1]}/", "")
                for key, value in vars(self.args).items()
                if value is not None
            },
        }


def write_record(folder: Path, name: str, parts: Mapping[str, dict[str, Any]]) -> Path:
    """Write README.md and results.json into `FOLDER/DATE_DEVICE_NAME`, which it returns; other parts there stay."""
    where = next(iter(parts.values()))["environment"]
    device = "cpu" if where["gpu"] == "no GPU" else re.sub(r"[^a-z0-9]+", "-", where["gpu"].partition(",")[0].lower())
    record = folder / f"{where['date'][:10]}_{device}_{name}"
    record.mkdir(parents=True, exist_ok=True)
    file = record / "results.json"
    found = {**(json.loads(file.read_text()) if file.exists() else {}), **parts}
    file.write_text(json.dumps(found, separators=(",", ":")) + "\n")  # an indented number a line would be 20,000 lines
    head = f"# {name}, {where['date'][:10]}\n\n`jobs/benchmarks/{name}.py` explains it; raw values are in results.json."
    (record / "README.md").write_text(f"{head}\n\n{page(found)}\n")
    return record


def page(parts: Mapping[str, dict[str, Any]]) -> str:
    """All parts in Markdown, with their environment, which those of one run share."""
    sentences = [sentence(part["environment"]) for part in parts.values()]
    sections = []
    for number, (title, part) in enumerate(parts.items()):
        shared = sentences[number] in sentences[number + 1 :]
        sections += [f"## {title}", part["markdown"], *([] if shared else sentences[number : number + 1])]
    return "\n\n".join(sections)


def sentence(where: Mapping[str, Any]) -> str:
    """The environment in a sentence."""
    versions = ", ".join(f"{name} {value}" for name, value in where["versions"].items())
    quick = "QUICK, THE FIGURES MEAN NOTHING. " if where["options"].get("quick") == "True" else ""
    return (
        f"{quick}Measured {where['date']} on {where['cores']} cores of {where['cpu']}, {where['gpu']}, load average "
        f"{where['load_average']}, {versions}, commit {where['commit']}, by `{where['command']}`."
    )


def output_of(*command: str) -> str:
    """The output of a command; empty where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
