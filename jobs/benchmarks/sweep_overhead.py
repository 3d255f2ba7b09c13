"""What a sweep costs on top of its training: Paceline's, and the pattern of Ray's documentation.

    uv run python jobs/benchmarks/sweep_overhead.py

Each arm runs in processes of its own with a private local Ray, one arm after the other, on CPU cores. A trial of
`stock` and `paceline` trains a tiny network on random numbers for ten steps with two DDP workers, evaluates it, saves a
checkpoint, and records parameters and metrics in MLflow on SQLite. Needs two cores, no GPU; takes some ten minutes.

stock      stock_sweep.py: Ray Tune with a driver function for each trial, which runs a TorchTrainer with a
           TuneReportCallback; one trial at a time. Ray's dashboard is on, as it is by default: without it trials may
           end seconds later. The MLflow store is made before; metrics are sent all at once, at the end of a trial.
paceline   `paceline sweep` with a grid of learning rates, every step recorded, from an empty folder: it also makes its
           MLflow store. `paceline again` (A/A) is the same: the ratio of the two is the noise.
two slots  `paceline sweep` of eight trials that sleep for `--seconds` each, so that they do not compete for cores, in
           two slots of one worker.

cold start    from the start of the process to the end of the first trial's first step.
trial         time between the ends of two successive trials. paceline: median and mean without the first two trials; a
              trial's end is the time stamp of its last metric. stock: the mean over all; a trial ends when its driver
              function does.
total         from the start to the end of the process. For stock: the time without its later trials, and its seconds a
              trial for each trial that it has fewer than `--trials`.
two slots     from the start of the first trial's first step to the end of the last trial; `ideal` is four times what
              the shortest of the trials took by itself.
"""

import json
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from harness import ArmFailed, Benchmark, Interval, Part, Target, estimate, ratio, run_command, take_turns

STEP_SECONDS = 0.25
LEFT_OUT = 2
SLOTS, SLOT_TRIALS = 2, 8
STOCK = Path(__file__).with_name("stock_sweep.py")
CREATE_STORE = "from mlflow import MlflowClient; MlflowClient('sqlite:///mlflow.db').create_experiment('overhead')"
SIZES = {"num_samples": 320, "num_validation_samples": 32, "global_batch_size": 32}
SWEEP: dict[str, Any] = {
    "name": "overhead",
    "model": {"name": "mlp", "in_features": 8, "hidden": [16], "num_classes": 4},
    "data": {"name": "synthetic", "shape": [8], "num_classes": 4, **SIZES},
    "trainer": {"epochs": 1, "log_every_n_steps": 1},
    "scaling": {"num_workers": 2, "use_gpu": False},
    "tracking": {"uri": "sqlite:///mlflow.db"},
}
SLEEPER = """
import time
from torch import nn

class Sleeper(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.linear = nn.Linear(8, 4)

    def forward(self, inputs):
        if self.training:
            time.sleep(self.seconds)
        return self.linear(inputs)
"""

Span = tuple[float, float]
"""Start and end of a process, in seconds since 1970."""
Figures = dict[str, float]
"""Seconds, by name."""


class TrialTimes(NamedTuple):
    """From the time stamps of a trial's metrics, in seconds since 1970."""

    start: float
    """Of the first step."""
    first_step: float
    """The first step's end."""
    end: float


def stock(folder: Path, args: Namespace) -> Figures:
    """A few trials by the pattern of Ray's documentation."""
    (folder / "stock.py").write_text(STOCK.read_text())
    run_command([sys.executable, "-c", CREATE_STORE], folder)
    span = run_command([sys.executable, "stock.py", str(args.stock_trials)], folder)
    moments = [json.loads(line) for line in (folder / "moments").read_text().splitlines()]
    first_step = min(moment for event, moment in moments if event == "first step")
    return stock_figures(span, first_step, [moment for event, moment in moments if event == "end"], args)


def stock_figures(span: Span, first_step: float, ends: Sequence[float], args: Namespace) -> Figures:
    """Its total is that of as many trials as Paceline's."""
    require(len(ends), args.stock_trials)
    seconds = statistics.fmean(distances(ends))
    total = span[1] - span[0] + (args.trials - args.stock_trials) * seconds
    return {"cold start": first_step - span[0], "trial, mean": seconds, "total": total}


def paceline(folder: Path, args: Namespace) -> Figures:
    """A sweep over learning rates."""
    span = sweep(folder, {**SWEEP, "sweep": {"space": {"optimizer.lr": rates(args.trials)}, "metric": "val/loss"}})
    return sweep_figures(span, read_trials(folder), args)


def sweep_figures(span: Span, times: Sequence[TrialTimes], args: Namespace) -> Figures:
    """Of a trial once the worker group is warm: without the first two."""
    require(len(times), args.trials)
    warm = distances([each.end for each in times][LEFT_OUT:])
    return {
        "cold start": min(each.first_step for each in times) - span[0],
        "trial, mean": statistics.fmean(warm),
        "trial, median": statistics.median(warm),
        "total": span[1] - span[0],
    }


def two_slots(folder: Path, args: Namespace) -> Figures:
    """A sweep of trials that sleep, two at a time."""
    (folder / "sleeper.py").write_text(SLEEPER)
    steps = max(2, round(args.seconds / STEP_SECONDS))
    config = {
        **SWEEP,
        "model": {"path": "sleeper:Sleeper", "args": {"seconds": STEP_SECONDS}},
        "data": {**SWEEP["data"], "num_samples": steps * SIZES["global_batch_size"]},
        "scaling": {**SWEEP["scaling"], "num_workers": 1},
        "sweep": {"space": {"optimizer.lr": rates(SLOT_TRIALS)}, "metric": "val/loss", "slots": SLOTS},
    }
    sweep(folder, config)
    return slot_figures(read_trials(folder))


def slot_figures(times: Sequence[TrialTimes]) -> Figures:
    """How long trials in slots took, and how long they would take if nothing came between them."""
    require(len(times), SLOT_TRIALS)
    ideal = len(times) / SLOTS * min(each.end - each.start for each in times)
    return {"total": max(each.end for each in times) - min(each.start for each in times), "ideal": ideal}


ARMS: dict[str, Callable[[Path, Namespace], Figures]] = {
    "stock": stock,
    "paceline": paceline,
    "paceline again": paceline,
    "two slots": two_slots,
}


def rates(count: int) -> list[float]:
    """So many learning rates."""
    return [round(0.001 * (1 + each), 6) for each in range(count)]


def sweep(folder: Path, config: dict[str, Any]) -> Span:
    """`paceline sweep` from its start to its end."""
    (folder / "sweep.yaml").write_text(yaml.safe_dump(config))
    return run_command([sys.executable, "-m", "paceline", "sweep", "sweep.yaml", "--json"], folder)


def read_trials(folder: Path) -> list[TrialTimes]:
    """When the trials of the sweep in a folder began and ended, sorted by their ends."""
    journals = folder.glob("runs/*/*/trials/*/tracking/journal.jsonl")
    return sorted((trial_times(journal) for journal in journals), key=lambda times: times.end)


def trial_times(journal: Path) -> TrialTimes:
    """When a trial began and ended, from its journal, which has every step."""
    entries = (json.loads(line) for line in journal.read_text().splitlines())
    points = [entry for entry in entries if entry["kind"] == "point"]
    first = {point["key"]: point for point in points if point["step"] == 1}
    first_step = first["train/loss"]["timestamp_ms"] / 1000
    end = max(point["timestamp_ms"] for point in points) / 1000
    return TrialTimes(first_step - first["step_seconds"]["value"], first_step, end)


def require(found: int, expected: int) -> None:
    """Raise ArmFailed unless the times of all trials are there."""
    if found != expected:
        raise ArmFailed(f"{found} of {expected} trials have left their times")


def distances(moments: Sequence[float]) -> list[float]:
    """From each to the next."""
    return [after - before for before, after in pairwise(sorted(moments))]


def in_empty_folder(name: str, args: Namespace, benchmark: Benchmark) -> Figures:
    """An arm in a folder of its own."""
    # Ray's processes may write there for a moment after their driver's end
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = ARMS[name](Path(folder), args)
    benchmark.say(f"{name}: {', '.join(f'{figure} {seconds:.2f} s' for figure, seconds in found.items())}")
    return found


def report(found: dict[str, list[Figures]], failures: dict[str, str], trials: int) -> Part:
    """Seconds by arm, and what is compared."""

    def values(arm: str, figure: str) -> list[float]:
        return [each[figure] for each in found[arm]]

    def compared(arm: str, other: str, figure: str, other_figure: str = "") -> Interval | None:
        has_both = arm in found and other in found
        return ratio([values(arm, figure)], [values(other, other_figure or figure)]) if has_both else None

    rows = [(arm, figure, f"{statistics.median(values(arm, figure)):.2f}") for arm in found for figure in found[arm][0]]
    warm = [estimate([values("paceline", f"trial, {by}")]) for by in ("mean", "median") if "paceline" in found]
    noise = compared("paceline again", "paceline", "total")
    total = f"total of {trials} trials, ratio to stock"
    targets = [
        Target("seconds a trial once warm, mean and median", max(warm, default=None), most=0.3),
        Target(total, compared("paceline", "stock", "total"), most=1 / 24),
        Target("two slots, ratio to ideal", compared("two slots", "two slots", "total", "ideal"), most=1.1),
    ]
    notes = [] if noise is None else [f"total of paceline again, ratio to paceline (A/A): {noise}"]
    return Part(("arm", "figure", "seconds"), rows, targets, failures, notes, raw=found)


def main() -> int:
    """Measure, and print the table."""
    benchmark = Benchmark("sweep_overhead", __doc__, ("ray", "torch", "mlflow", "paceline"), arms=list(ARMS))
    benchmark.number("--rounds", 1, 1, "of all arms")
    benchmark.number("--trials", 32, 4, "of the arm paceline", least=LEFT_OUT + 2)
    benchmark.number("--stock-trials", 3, 2, "of the arm stock", least=2)
    benchmark.number("--seconds", 20.0, 0.5, "of a trial of the arm two slots", least=2 * STEP_SECONDS)
    args = benchmark.parse()
    names = args.arms or [name for name in ARMS if not (args.quick and name.endswith("again"))]
    arms = {name: partial(in_empty_folder, name, args, benchmark) for name in names}
    found, failures = take_turns(arms, args.rounds)
    return benchmark.finish({"sweep": report(found, failures, args.trials)})


if __name__ == "__main__":
    sys.exit(main())
