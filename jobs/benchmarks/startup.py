"""Time from the command to the end of the first training step: the smallest stock Ray Train script against Paceline.

    uv run python jobs/benchmarks/startup.py

Both start a private local Ray and two DDP workers on the CPU, in an empty folder. Needs two cores; takes some five
minutes.

stock         stock_train.py, to the moment that its rank 0 writes after the first step.
stock again   the same (A/A): how far it is from 1 is the noise.
paceline      `paceline train`, to the time stamp of its first metric. It also makes its MLflow store.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Benchmark, Part, Target, ratio, run_command, take_turns

STOCK = Path(__file__).with_name("stock_train.py")
CONFIG = """
name: startup
model: {name: mlp, in_features: 8, hidden: [], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 32, num_validation_samples: 8, global_batch_size: 32}
trainer: {max_steps: 1, log_every_n_steps: 1}
scaling: {num_workers: 2, use_gpu: false}
"""
MOST_RATIO = 0.85


def stock(folder: Path) -> float:
    """Seconds to the first step of the stock script."""
    (folder / "stock.py").write_text(STOCK.read_text())
    start = run_command([sys.executable, "stock.py"], folder)[0]
    return float((folder / "first_step").read_text()) - start


def paceline(folder: Path) -> float:
    """Seconds to the first step of `paceline train`."""
    (folder / "startup.yaml").write_text(CONFIG)
    start = run_command([sys.executable, "-m", "paceline", "train", "startup.yaml"], folder)[0]
    journal = next(folder.glob("runs/startup/*/tracking/journal.jsonl"))
    entries = (json.loads(line) for line in journal.read_text().splitlines())
    first = next(entry for entry in entries if entry.get("key") == "train/loss")
    return float(first["timestamp_ms"]) / 1000 - start


ARMS: dict[str, Callable[[Path], float]] = {"stock": stock, "paceline": paceline, "stock again": stock}


def in_empty_folder(arm: Callable[[Path], float]) -> float:
    """An arm in a folder of its own."""
    # Ray's processes may write there for a moment after their driver's end
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return arm(Path(folder))


def report(seconds: dict[str, list[float]], failures: dict[str, str]) -> Part:
    """The table of all arms."""
    stock_seconds = seconds.get("stock")
    rows, targets = [], []
    for name, each in seconds.items():
        to_stock = ratio([each], [stock_seconds]) if stock_seconds else None
        rows.append((name, f"{statistics.median(each):.1f}", to_stock or "-"))
        if name == "paceline":
            targets.append(Target("paceline, seconds to the first step over those of stock", to_stock, most=MOST_RATIO))
    return Part(("arm", "median seconds", "ratio to stock"), rows, targets, failures, raw=seconds)


def main() -> int:
    """Measure, and print the table."""
    benchmark = Benchmark("startup", __doc__, ("torch", "ray", "mlflow", "paceline"), arms=list(ARMS))
    benchmark.number("--rounds", 3, 1, "of all arms")
    args = benchmark.parse()
    names = args.arms or [name for name in ARMS if not (args.quick and name.endswith("again"))]
    arms = {name: partial(in_empty_folder, ARMS[name]) for name in names}
    seconds, failures = take_turns(arms, args.rounds, after_round=benchmark.say_round)
    return benchmark.finish({"startup": report(seconds, failures)})


if __name__ == "__main__":
    sys.exit(main())
