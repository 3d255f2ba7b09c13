"""Time from the command to the end of the first training step: the smallest stock Ray Train script against Paceline.

    uv run python jobs/benchmarks/startup.py [--pairs 3]

Both start a private local Ray and two DDP workers on the CPU. The arms run in turn, each pair in the opposite order of
the one before; the stock script is run twice per pair, and the ratio of its two runs is the noise floor.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STOCK = """
import time
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

def train_loop():
    model = prepare_model(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        open("first_step", "w").write(str(time.time()))

ray.init(address="local", logging_level="ERROR")
import os
folder = os.getcwd()
os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=folder)).fit()
"""

CONFIG = """
name: startup
model: {name: mlp, in_features: 8, hidden: [], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 32, num_validation_samples: 8, global_batch_size: 32}
trainer: {max_steps: 1, log_every_n_steps: 1}
scaling: {num_workers: 2}
"""


def stock(folder: Path) -> float:
    """Seconds to the first step of the stock script."""
    (folder / "stock.py").write_text(STOCK)
    start = _run([sys.executable, "stock.py"], folder)
    return float((folder / "first_step").read_text()) - start


def paceline(folder: Path) -> float:
    """Seconds to the first step of `paceline train`, by the time stamp of its first metric."""
    (folder / "startup.yaml").write_text(CONFIG)
    start = _run([sys.executable, "-m", "paceline.cli", "train", "startup.yaml"], folder)
    journal = next(folder.glob("runs/startup/*/tracking/journal.jsonl"))
    entries = (json.loads(line) for line in journal.read_text().splitlines())
    first = next(entry for entry in entries if entry.get("key") == "train/loss")
    return first["timestamp_ms"] / 1000 - start


def _run(command: list[str], folder: Path) -> float:
    start = time.time()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout}\n{done.stderr}")
    return start


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    pairs = parser.parse_args().pairs
    seconds: dict[str, list[float]] = {"stock": [], "stock again": [], "paceline": []}
    arms = {"stock": stock, "paceline": paceline, "stock again": stock}
    for pair in range(pairs):
        for name in list(arms) if pair % 2 == 0 else reversed(list(arms)):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(arms[name](Path(folder)))
            print(f"{name:12} {seconds[name][-1]:6.1f} s", file=sys.stderr, flush=True)
    print(f"{'arm':12} {'median s':>9} {'ratio to stock':>15}")
    for name, values in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(values, seconds["stock"], strict=True)]
        print(f"{name:12} {statistics.median(values):9.1f} {statistics.median(ratios):15.2f}")


if __name__ == "__main__":
    main()
