"""The same sweep of DDP trainings, written with Paceline and with what the field would use in its place.

    uv run --group bench python jobs/benchmarks/peers.py

Each arm is a script in `peers/` that trains the CNN of peers/digits.py on MNIST images for three epochs with two DDP
workers on CPU cores: four batch sizes times two learning rates, a checkpoint after each epoch, resume after a lost
worker, and the loss of each step in MLflow. Needs two cores, no GPU; takes some twenty minutes.

lightning    A LightningModule and MLFlowLogger; RayDDPStrategy, RayLightningEnvironment and RayTrainReportCallback as
             in Ray's "Get Started with PyTorch Lightning"; resumed by `ckpt_path`.
accelerate   Accelerator in Ray Train's workers as in Ray's "Get Started with Hugging Face Accelerate"; its MLflow
             tracker, `save_state` and `load_state`.
ray          `prepare_model` and `prepare_data_loader`, and MLflow's own calls on rank 0, as in Ray's guides to PyTorch,
             checkpoints and experiment tracking.
paceline     `sweep` with a config file.

The first three run trials as Ray's "Hyperparameter Tuning with Ray Tune" says: a function for each trial that runs a
TorchTrainer with a TuneReportCallback, and `max_failures` for workers and for trials. Their MLflow run is made by that
function, so that a restarted worker continues it, as Ray's guide to experiment tracking recommends. Ray is
started with its defaults. In all arms, trials run one at a time, since two workers fill two cores, and MLflow is a
server with SQLite on this machine. The worker that is killed is not the one that logs, like most in a large group.

lines        of the script without blank lines, comments, docstring and what measures; with those of the config file.
             Network and data are in peers/digits.py for all arms, and not counted.
first step   from the start of the process to the end of the first trial's first optimizer step.
trials       from the start to the end of the process. The raw values have the time in training, too: from the first to
             the last step of each trial.
MLflow runs  of these trials, and others, such as a parent.
killed       a second sweep, of the two trials with the smallest batch: in the second trial's last epoch, rank 1 ends by
             SIGKILL. `lost`: trials that do not finish. `from scratch`: trials that begin again with step 1.
             `repeated`: steps that are trained again. `s to next step`: from the kill to the trial's next step.
points       of `train/loss` in MLflow after the second sweep. `duplicated`: more than one in a run for the same step.
             `missing`: none for a step of a trial.
"""

import ast
import json
import os
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import ArmFailed, Benchmark, Part, run_command, take_turns
from tracking_cost import served

SCRIPTS = Path(__file__).with_name("peers")
RATES, EPOCHS, SAMPLES = (0.05, 0.1), 3, 4000
LIMIT_SECONDS = 900.0
Trial = tuple[int, float]
"""Batch size and learning rate."""
Steps = Sequence[Mapping[str, Any]]
"""Lines of probe.py: time, batch_size, lr, step and rank."""


class Peer(NamedTuple):
    """An arm: its files, and its names of the two hyperparameters in MLflow."""

    title: str
    files: tuple[str, ...]
    params: tuple[str, str] = ("batch_size", "lr")


ARMS = {
    "lightning": Peer("Lightning + Ray Tune", ("lightning_tune.py",)),
    "accelerate": Peer("Accelerate + Ray Tune", ("accelerate_tune.py",)),
    "ray": Peer("Ray Train + Ray Tune", ("ray_train_tune.py",)),
    "paceline": Peer(
        "Paceline", ("paceline_sweep.py", "paceline_sweep.yaml"), ("data.global_batch_size", "optimizer.lr")
    ),
}


class RunPoints(NamedTuple):
    """The steps of a run's points of `train/loss` in MLflow, and its trial; None for a run without one."""

    trial: Trial | None
    steps: Sequence[int]


def num_steps(batch_size: int) -> int:
    """Return the optimizer steps of a trial; the last batch of an epoch may be smaller."""
    return EPOCHS * -(-SAMPLES // batch_size)


def count_lines(text: str, is_python: bool) -> int:
    """Count the lines of user code: without blank lines, comments, module docstring, and lines marked `# measured`."""
    lines = text.splitlines()
    if is_python and ast.get_docstring(module := ast.parse(text)) is not None:
        lines = lines[module.body[0].end_lineno :]
    stripped = [line.strip() for line in lines]
    return sum(bool(line) and not line.startswith("#") and not line.endswith("# measured") for line in stripped)


def count_points(runs: Sequence[RunPoints], expected: Mapping[Trial, int]) -> dict[str, int]:
    """Count the points of a step that its run already has, and the steps that no run of their trial has."""
    duplicated = sum(len(run.steps) - len(set(run.steps)) for run in runs)
    found = {trial: {step for run in runs if run.trial == trial for step in run.steps} for trial in expected}
    missing = sum(count - len(found[trial]) for trial, count in expected.items())
    return {"duplicated": duplicated, "missing": missing}


def count_losses(steps: Steps, expected: Mapping[Trial, int]) -> dict[str, int]:
    """Count trials that do not finish, trials that begin again, and repeated steps, by the notes of rank 0."""
    times = Counter((trial_of(each), each["step"]) for each in steps if each["rank"] == 0)
    return {
        "lost": sum(not times[trial, count] for trial, count in expected.items()),
        "from scratch": sum(times[trial, 1] > 1 for trial in expected),
        "repeated": sum(count - 1 for count in times.values()),
    }


def seconds_to_next_step(steps: Steps, killed: tuple[Trial, int]) -> float:
    """Return the seconds from the killed worker's last step to the next step of rank 1 in that trial."""
    trial, step = killed
    times = [each["time"] for each in steps if trial_of(each) == trial and each["rank"] == 1]
    at = min(each["time"] for each in steps if (trial_of(each), each["step"], each["rank"]) == (trial, step, 1))
    return min((time for time in times if time > at), default=float("nan")) - at


def spans(steps: Steps) -> dict[Trial, float]:
    """Return the seconds from the first to the last step of each trial."""
    times: dict[Trial, list[float]] = {}
    for each in steps:
        times.setdefault(trial_of(each), []).append(each["time"])
    return {trial: max(each) - min(each) for trial, each in times.items()}


def trial_of(note: Mapping[str, Any]) -> Trial:
    """Return the trial of a note."""
    return note["batch_size"], note["lr"]


def read_runs(uri: str, peer: Peer) -> list[RunPoints]:
    """Return all runs of a server."""
    from mlflow import MlflowClient

    client, found = MlflowClient(uri), []
    for run in client.search_runs([each.experiment_id for each in client.search_experiments()]):
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")]
        batch_size, rate = (run.data.params.get(name) for name in peer.params)
        found.append(RunPoints((int(batch_size), float(rate)) if steps else None, steps))
    return found


def run_sweep(peer: Peer, batch_sizes: Sequence[int], kill: tuple[Trial, int] | None, limit: float) -> dict[str, Any]:
    """Run a sweep against a new server; return its seconds and its counts."""
    expected = {(size, rate): num_steps(size) for size in batch_sizes for rate in RATES}
    # Ray's processes may write there for a moment after their driver's end
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["PEERS_STEPS"] = str(folder / "steps")
        os.environ["PEERS_KILL"] = f"{kill[0][0]} {kill[0][1]} {kill[1]}" if kill else ""
        (folder / "work").mkdir()
        (folder / "store").mkdir()
        with served(folder / "store") as uri:
            command = [str(SCRIPTS / peer.files[0]), uri, str(folder / "work"), *map(str, batch_sizes)]
            start, end = run_command([sys.executable, *command], folder, limit)
            runs = read_runs(uri, peer)
        steps = [json.loads(line) for line in (folder / "steps").read_text().splitlines()]
        if kill and not (folder / "steps.killed").exists():
            raise ArmFailed("no worker was killed")
    own = sum(run.trial is not None for run in runs)
    found = {"first step": min(each["time"] for each in steps) - start, "sweep": end - start}
    found |= {"training": sum(spans(steps).values()), "trial runs": own, "other runs": len(runs) - own}
    found |= count_points(runs, expected) | count_losses(steps, expected)
    return found | ({"next step": seconds_to_next_step(steps, kill)} if kill else {})


def measure(name: str, args: Namespace, benchmark: Benchmark) -> dict[str, Any]:
    """Run both sweeps of an arm."""
    peer, smallest = ARMS[name], min(args.batch_sizes)
    steps = num_steps(smallest)
    kill = (smallest, RATES[-1]), steps - steps // (2 * EPOCHS)
    sweeps = {
        "whole": partial(run_sweep, peer, args.batch_sizes, None, args.limit),
        "killed": partial(run_sweep, peer, [smallest], kill, args.limit),
    }
    found: dict[str, Any] = {
        "lines": sum(count_lines((SCRIPTS / file).read_text(), file.endswith(".py")) for file in peer.files)
    }
    for title, run in sweeps.items():
        found[title] = kept(args.keep and args.keep / f"{name}_{title}.json", run)
        benchmark.say(f"{name}, {title}: {found[title]}")
    return found


def kept(file: Path | None, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the values in the file if it exists, else make and write them."""
    if file and file.exists():
        return json.loads(file.read_text())
    found = make()
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def report(found: Mapping[str, Sequence[Mapping[str, Any]]], failures: Mapping[str, str], trials: int) -> Part:
    """Return the table: a row for each arm."""
    columns = ("", "lines", "first step, s", f"{trials} trials, s", "MLflow runs", "killed: lost")
    columns += ("from scratch", "repeated", "s to next step", "points duplicated", "missing")
    rows = []
    for name, (each, *_) in found.items():
        whole, killed = each["whole"], each["killed"]
        seconds = [f"{whole[figure]:.1f}" for figure in ("first step", "sweep")]
        counts = [killed[figure] for figure in ("lost", "from scratch", "repeated")]
        runs, after = f"{whole['trial runs']} + {whole['other runs']}", f"{killed['next step']:.1f}"
        points = killed["duplicated"], killed["missing"]
        rows.append((ARMS[name].title, each["lines"], *seconds, runs, *counts, after, *points))
    wrong = {name: "the sweep without a kill is not complete" for name, (each, *_) in found.items() if gaps(each)}
    return Part(columns, rows, failures={**failures, **wrong}, raw=found)


def gaps(found: Mapping[str, Any]) -> bool:
    """Return True if a trial or a point is missing although nothing was killed, or is there twice."""
    return any(found["whole"][each] for each in ("lost", "repeated", "duplicated", "missing"))


def main() -> int:
    """Measure, and print the table."""
    packages = ("torch", "ray", "mlflow", "lightning", "accelerate", "paceline")
    benchmark = Benchmark("peers", __doc__, packages, arms=list(ARMS))
    benchmark.parser.add_argument("--batch-sizes", nargs="+", type=int, metavar="N", help="64 128 256 512; quick: 512")
    benchmark.parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep each sweep's values there, and run no sweep again that has some",
    )
    benchmark.number("--limit", LIMIT_SECONDS, LIMIT_SECONDS, "seconds that a sweep may take")
    args = benchmark.parse()
    args.batch_sizes = args.batch_sizes or ([512] if args.quick else [64, 128, 256, 512])
    arms = {name: partial(measure, name, args, benchmark) for name in args.arms or ARMS}
    found, failures = take_turns(arms, 1)
    in_order = {name: found[name] for name in ARMS if name in found}
    return benchmark.finish({"peers": report(in_order, failures, len(args.batch_sizes) * len(RATES))})


if __name__ == "__main__":
    sys.exit(main())
