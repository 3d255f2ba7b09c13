"""What a sweep costs on top of its training: Paceline's, and the pattern of Ray's documentation.

    uv run python jobs/benchmarks/sweep_overhead.py [--trials 32] [--stock-trials 3]

Each arm runs once, in processes of its own with a private local Ray, one arm after the other, on CPU cores. A trial of
`stock` and `paceline` trains a tiny network on random numbers for ten steps with two DDP workers, evaluates it, saves a
checkpoint, and records parameters and metrics in MLflow on SQLite. Needs two cores and no GPU; takes some ten minutes.

no-op      `TorchTrainer.fit()` of two workers with a function that returns at once, without Ray's dashboard. Without it
           `fit()` may wait at its end for a part of Ray that asks the dashboard, which is why the table also tells when
           the function was entered.
stock      Ray Tune with a driver function for each trial, which runs a TorchTrainer with a TuneReportCallback; one
           trial at a time. Ray's dashboard is on, as it is by default: without it trials may end seconds later. The
           MLflow store is made before; metrics are sent all at once, at the end of a trial.
paceline   `paceline sweep` with a grid of learning rates, every step recorded, from an empty folder: it also makes its
           MLflow store.
two slots  `paceline sweep` of eight trials that sleep for `--seconds` each, so that they do not compete for cores, in
           two slots of one worker.

cold start    from the start of the process to the end of the first trial's first step (stock, paceline), or to the end
              of `fit()` (no-op).
trial, warm   time between the ends of two successive trials. paceline: median and mean without the first two trials; a
              trial's end is the time stamp of its last metric. stock: the mean over all; a trial ends when its driver
              function does.
total         from the start to the end of the process. That of stock is made up of what it took without its later
              trials, and of as many times its seconds a trial as are lacking to `--trials`.
two slots     from the start of the first trial's first step to the end of the last trial, over four times what the
              shortest of the trials took by itself.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from measuring import cpu_name

LIMIT_SECONDS = 3600
STEP_SECONDS = 0.25
LEFT_OUT = 2
SLOTS, SLOT_TRIALS = 2, 8
PACKAGES = ("ray", "torch", "mlflow", "paceline")

NO_OP = """
import os
import time
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train_loop(config):
    if ray.train.get_context().get_world_rank() == 0:
        open(config["folder"] + "/entered", "w").write(str(time.time()))

folder = os.getcwd()
ray.init(address="local", include_dashboard=False, logging_level="ERROR")
scaling, run = ScalingConfig(num_workers=2), RunConfig(name="no-op", storage_path=folder)
TorchTrainer(train_loop, train_loop_config={"folder": folder}, scaling_config=scaling, run_config=run).fit()
open("fitted", "w").write(str(time.time()))
"""

CREATE_STORE = "from mlflow import MlflowClient; MlflowClient('sqlite:///mlflow.db').create_experiment('overhead')"

STOCK = """
import json
import os
import sys
import tempfile
import time
import ray
import ray.train
import ray.train.torch
import torch
from ray import tune
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

def note(config, event):
    with open(config["folder"] + "/moments", "a") as file:
        print(json.dumps([event, time.time()]), file=file)

def batches(samples, shuffle):
    dataset = TensorDataset(torch.randn(samples, 8), torch.randint(0, 4, (samples,)))
    return prepare_data_loader(DataLoader(dataset, batch_size=16, shuffle=shuffle))

def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        pairs = [(model(inputs), targets) for inputs, targets in loader]
    losses = [F.cross_entropy(*pair).item() for pair in pairs]
    right = [(outputs.argmax(1) == targets).float().mean().item() for outputs, targets in pairs]
    return {"val/loss": sum(losses) / len(losses), "val/accuracy": sum(right) / len(right)}

def train_loop(config):
    is_first = ray.train.get_context().get_world_rank() == 0
    if is_first:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        client = MlflowClient("sqlite:///" + config["folder"] + "/mlflow.db")
        experiment = client.get_experiment_by_name("overhead").experiment_id
        run = client.create_run(experiment).info.run_id
        client.log_batch(run, params=[Param(key, str(value)) for key, value in config.items()])
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    training, validation = batches(320, True), batches(32, False)
    metrics = []
    for step, (inputs, targets) in enumerate(training, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if is_first:
            metrics.append(("train/loss", loss.item(), step))
            if step == 1:
                note(config, "first step")
    values = evaluate(model, validation)
    with tempfile.TemporaryDirectory() as folder:
        if is_first:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, folder + "/state.pt")
            metrics += [(key, value, step) for key, value in values.items()]
            now = int(time.time() * 1000)
            client.log_batch(run, metrics=[Metric(key, value, now, at) for key, value, at in metrics])
            client.set_terminated(run)
        ray.train.report(values, checkpoint=Checkpoint.from_directory(folder) if is_first else None)

def drive(config):
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=config,
        # a little less than a core, since Tune takes a hundredth of one for this function
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.9}),
        run_config=RunConfig(
            name="train-" + tune.get_context().get_trial_id(),
            storage_path=config["folder"] + "/train",
            callbacks=[TuneReportCallback()],
        ),
    )
    trainer.fit()
    note(config, "end")

if __name__ == "__main__":
    ray.init(address="local", logging_level="ERROR")
    trials, folder = int(sys.argv[1]), os.getcwd()
    tuner = tune.Tuner(
        tune.with_resources(drive, {"CPU": 0.01}),
        param_space={"lr": tune.grid_search([0.01 * (1 + each) for each in range(trials)]), "folder": folder},
        tune_config=tune.TuneConfig(metric="val/loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="tune", storage_path=folder + "/tune"),
    )
    results = tuner.fit()
    sys.exit(f"{results.errors}" if results.errors else 0)
"""

SWEEP: dict[str, Any] = {
    "name": "overhead",
    "model": {"name": "mlp", "in_features": 8, "hidden": [16], "num_classes": 4},
    "data": {
        "name": "synthetic",
        "shape": [8],
        "num_classes": 4,
        "num_samples": 320,
        "num_validation_samples": 32,
        "global_batch_size": 32,
    },
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

Raw = dict[str, Any]
"""What an arm measured, in seconds since its process was started."""


class ArmFailed(Exception):
    """A process of an arm failed."""


class Span(NamedTuple):
    """When a process, or a trial, began and ended, in seconds since 1970."""

    start: float
    end: float


class TrialTimes(NamedTuple):
    """From the time stamps of a trial's metrics, in seconds since 1970."""

    start: float
    """Of the first step."""
    first_step: float
    """The first step's end."""
    end: float


class Bar(NamedTuple):
    """One line of what is aimed at."""

    text: str
    value: float | None
    """None: not measured."""
    most: float

    @property
    def verdict(self) -> str:
        """Whether the value is at most what is allowed."""
        if self.value is None:
            return "not measured"
        return "met" if self.value <= self.most else "not met"


def no_op(folder: Path, args: argparse.Namespace) -> Raw:
    """Start and end of a TorchTrainer that does nothing."""
    (folder / "no_op.py").write_text(NO_OP)
    start = run_process([sys.executable, "no_op.py"], folder).start
    entered, fitted = (float((folder / name).read_text()) - start for name in ("entered", "fitted"))
    return {"function_entered": entered, "end_of_fit": fitted}


def stock(folder: Path, args: argparse.Namespace) -> Raw:
    """A few trials by the pattern of Ray's documentation."""
    (folder / "stock.py").write_text(STOCK)
    run_process([sys.executable, "-c", CREATE_STORE], folder)
    span = run_process([sys.executable, "stock.py", str(args.stock_trials)], folder)
    moments = [json.loads(line) for line in (folder / "moments").read_text().splitlines()]
    firsts = [moment for event, moment in moments if event == "first step"]
    ends = [moment for event, moment in moments if event == "end"]
    return since(span, min(firsts), ends, args.stock_trials)


def paceline(folder: Path, args: argparse.Namespace) -> Raw:
    """A sweep over learning rates."""
    rates = [round(0.001 * (1 + each), 6) for each in range(args.trials)]
    span = sweep(folder, {**SWEEP, "sweep": {"space": {"optimizer.lr": rates}, "metric": "val/loss"}})
    times = read_trials(folder)
    return since(span, min(each.first_step for each in times), [each.end for each in times], args.trials)


def two_slots(folder: Path, args: argparse.Namespace) -> Raw:
    """A sweep of trials that sleep, two at a time."""
    (folder / "sleeper.py").write_text(SLEEPER)
    steps = max(2, round(args.seconds / STEP_SECONDS))
    rates = [round(0.001 * (1 + each), 6) for each in range(SLOT_TRIALS)]
    config = {
        **SWEEP,
        "model": {"path": "sleeper:Sleeper", "args": {"seconds": STEP_SECONDS}},
        "data": {**SWEEP["data"], "num_samples": steps * SWEEP["data"]["global_batch_size"]},
        "scaling": {**SWEEP["scaling"], "num_workers": 1},
        "sweep": {"space": {"optimizer.lr": rates}, "metric": "val/loss", "slots": SLOTS},
    }
    span = sweep(folder, config)
    times = read_trials(folder)
    require(len(times), SLOT_TRIALS)
    return {"trials": [[each.start - span.start, each.end - span.start] for each in times]}


ARMS: dict[str, Callable[[Path, argparse.Namespace], Raw]] = {
    "no-op": no_op,
    "stock": stock,
    "paceline": paceline,
    "two slots": two_slots,
}


def sweep(folder: Path, config: dict[str, Any]) -> Span:
    """`paceline sweep` from its start to its end."""
    (folder / "sweep.yaml").write_text(yaml.safe_dump(config))
    return run_process([sys.executable, "-m", "paceline.cli", "sweep", "sweep.yaml", "--json"], folder)


def run_process(command: Sequence[str], folder: Path, limit_seconds: float = LIMIT_SECONDS) -> Span:
    """Run a process in a folder, where Ray's own files go too.

    Raises:
        ArmFailed: it failed, or took too long and was ended; with the last lines that it wrote to stderr.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(folder)}
    environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # under `uv run` Ray would start each worker through uv
    environment.pop("MLFLOW_TRACKING_URI", None)
    # files, since Ray's processes hold on to pipes for longer than their driver lives
    with (folder / "stdout").open("w") as output, (folder / "stderr").open("w") as errors:
        start = time.time()
        try:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdout=output, stderr=errors, timeout=limit_seconds
            ).returncode
            end, told = time.time(), f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, end, told = 1, time.time(), f"took more than {limit_seconds:g} s"
    if code:
        last = (folder / "stderr").read_text(errors="replace").splitlines()[-15:]
        raise ArmFailed("\n".join([told, *last]))
    return Span(start, end)


def read_trials(folder: Path) -> list[TrialTimes]:
    """When the trials of the sweep in a folder began and ended, those that ended first at the front."""
    journals = folder.glob("runs/*/*/trials/*/tracking/journal.jsonl")
    return sorted((trial_times(journal) for journal in journals), key=lambda times: times.end)


def trial_times(journal: Path) -> TrialTimes:
    """When a trial began and ended, from its journal; every step has to be in it."""
    entries = (json.loads(line) for line in journal.read_text().splitlines())
    points = [entry for entry in entries if entry["kind"] == "point"]
    first = {point["key"]: point for point in points if point["step"] == 1}
    first_step = first["train/loss"]["timestamp_ms"] / 1000
    end = max(point["timestamp_ms"] for point in points) / 1000
    return TrialTimes(first_step - first["step_seconds"]["value"], first_step, end)


def since(span: Span, first_step: float, ends: Sequence[float], trials: int) -> Raw:
    """Moments of a sweep as seconds since its process was started."""
    require(len(ends), trials)
    start = span.start
    return {
        "first_step": first_step - start,
        "ends": [end - start for end in sorted(ends)],
        "process": span.end - start,
    }


def require(found: int, expected: int) -> None:
    """Raise ArmFailed unless all trials have left their times."""
    if found != expected:
        raise ArmFailed(f"{found} of {expected} trials have left their times")


def figures(raw: dict[str, Raw], trials: int) -> dict[str, float]:
    """What the table shows, by name; what was not measured is left out."""
    values: dict[str, float] = {}
    if "no-op" in raw:
        values |= {"no-op: function entered": raw["no-op"]["function_entered"]}
        values |= {"no-op: cold start": raw["no-op"]["end_of_fit"]}
    if "stock" in raw:
        seconds = statistics.fmean(distances(raw["stock"]["ends"]))
        lacking = trials - len(raw["stock"]["ends"])
        values |= {"stock: cold start": raw["stock"]["first_step"], "stock: trial, mean": seconds}
        values |= {"stock: total": raw["stock"]["process"] + lacking * seconds}
    if "paceline" in raw:
        warm = distances(raw["paceline"]["ends"][LEFT_OUT:])
        values |= {"paceline: cold start": raw["paceline"]["first_step"]}
        values |= {"paceline: trial, median": statistics.median(warm), "paceline: trial, mean": statistics.fmean(warm)}
        values |= {"paceline: total": raw["paceline"]["process"]}
    if "two slots" in raw:
        values |= slot_figures(raw["two slots"]["trials"])
    return values


def slot_figures(trials: Sequence[Sequence[float]]) -> dict[str, float]:
    """How long trials in slots took, and how long they would take if nothing came between them."""
    ideal = len(trials) / SLOTS * min(end - start for start, end in trials)
    took = max(end for _, end in trials) - min(start for start, _ in trials)
    return {"two slots: total": took, "two slots: ideal": ideal}


def distances(moments: Sequence[float]) -> list[float]:
    """From each to the next."""
    return [after - before for before, after in pairwise(moments)]


def bars(values: dict[str, float], trials: int) -> list[Bar]:
    """What is aimed at, and what was measured."""

    def ratio(one: str, other: str) -> float | None:
        return values[one] / values[other] if one in values and other in values else None

    warm = [value for name, value in values.items() if name.startswith("paceline: trial")]
    total = f"total of {trials} trials, ratio to stock"
    return [
        Bar("cold start, ratio to no-op", ratio("paceline: cold start", "no-op: cold start"), 1.5),
        Bar("seconds a trial once warm, median and mean", max(warm, default=None), 0.5),
        Bar(total, ratio("paceline: total", "stock: total"), 1 / 12),
        Bar("two slots, ratio to ideal", ratio("two slots: total", "two slots: ideal"), 1.1),
    ]


def table(values: dict[str, float], aims: Sequence[Bar], failures: dict[str, str], where: dict[str, Any]) -> str:
    """Seconds, then the bars, then what failed, and the surroundings under it."""
    lines = [f"{'seconds':44} {'value':>9}", *(f"{name:44} {value:9.2f}" for name, value in values.items())]
    lines += ["", f"{'aimed at':44} {'value':>9} {'at most':>8}"]
    for aim in aims:
        value = "-" if aim.value is None else f"{aim.value:.3f}"
        lines.append(f"{aim.text:44} {value:>9} {aim.most:8.3f}  {aim.verdict}")
    lines += [f"\n{arm} FAILED: {reason}" for arm, reason in failures.items()]
    return "\n".join([*lines, "", ", ".join(f"{key} {value}" for key, value in where.items())])


def run(args: argparse.Namespace) -> tuple[dict[str, Raw], dict[str, str]]:
    """Run the arms one after the other: what each measured, and why others failed."""
    raw: dict[str, Raw] = {}
    failures: dict[str, str] = {}
    for name in args.arms:
        began = time.monotonic()
        # Ray's processes may write there for a moment after their driver's end
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                raw[name] = ARMS[name](Path(folder), args)
            except ArmFailed as failure:
                failures[name] = str(failure)
        told = "FAILED" if name in failures else "done"
        print(f"{name:10} {told} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return raw, failures


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """Where, with what and when this was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "trials": args.trials,
        "stock_trials": args.stock_trials,
        "seconds": args.seconds,
    }


def main() -> None:
    """Measure, and print the table; the exit code is 1 when an arm failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS, help="only these (default: all)")
    parser.add_argument("--trials", type=int, default=32, help="of the arm paceline, at least 4 (%(default)s)")
    parser.add_argument("--stock-trials", type=int, default=3, help="of the arm stock, at least 2 (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of a trial of the arm two slots (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON, with every trial's times")
    args = parser.parse_args()
    if args.trials < LEFT_OUT + 2 or args.stock_trials < 2 or args.seconds < 2 * STEP_SECONDS:
        parser.error(f"--trials must be at least {LEFT_OUT + 2}, --stock-trials 2, and --seconds {2 * STEP_SECONDS}")
    where = surroundings(args)
    raw, failures = run(args)
    values = figures(raw, args.trials)
    aims = bars(values, args.trials)
    if args.json:
        told = [{**aim._asdict(), "verdict": aim.verdict} for aim in aims]
        print(json.dumps({"raw": raw, "figures": values, "bars": told, "failures": failures, **where}, indent=2))
    else:
        print(table(values, aims, failures, where))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
