"""What a training loop costs on top of the computation: bare PyTorch, Paceline, Fabric, Lightning and Accelerate.

    uv run --group bench python jobs/benchmarks/loop_overhead.py [--rounds 30] [--steps 200] [--json]

All arms train the same small CNN (about 1 ms a step, batch 32) in one process on one thread: same initial weights, same
tensors in memory, same batch order, SGD with momentum at a constant rate, and the loss read every 10 steps. An arm goes
on where it stopped; a round runs a block of `--steps` steps (one epoch) of every arm, in an order that rotates and is
reversed from round to round, with the garbage collector off inside of each block. The first round is thrown away.
Ratios are paired within a round: samples/s of an arm over those of `bare` in the same round; the table shows their
median and its 95 % bootstrap interval, once by the clock and once by the CPU time of the process, which other load on
the machine disturbs less. `bare again` is the bare loop a second time: its interval is this machine's noise. Needs no
GPU; takes a few minutes.

Each arm gets whole batches, sliced from the tensors: what is compared is the loop, not the collation of samples.

bare         the textbook loop: index, zero_grad, forward, mean cross-entropy, backward, step; `loss.item()`.
paceline     `build_trainer(config).fit()` as `paceline train` runs it, by default settings, on the user's own model
             and data set given as Python objects; one block is what `fit()` does until its reporter asks it to stop,
             start and end of `fit()` included. No evaluation or checkpoint falls into a block.
fabric       bare's loop with `fabric.setup(model, optimizer)` and `fabric.backward(loss)`.
lightning    `Trainer.fit` of a LightningModule that logs its loss by `self.log`; no logger, checkpoints or progress
             bar. Only the time from `on_train_start` to `on_train_end` counts, since each block calls `fit` anew.
accelerate   bare's loop with `accelerator.prepare(model, optimizer)` and `accelerator.backward(loss)`.
"""

import argparse
import copy
import gc
import json
import logging
import os
import platform
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from torch import nn
from torch.nn import functional as F

from paceline.config.loading import validate
from paceline.data._tensors import TensorData
from paceline.engine.build import build_trainer
from paceline.engine.order import permutation
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter

BATCH, LR, MOMENTUM, SEED, LOG_EVERY = 32, 0.01, 0.9, 0, 10
RATIOS = ("by_clock", "by_cpu_time")
PACKAGES = ("torch", "lightning", "accelerate", "paceline")

Tensors = tuple[torch.Tensor, torch.Tensor]
Batches = Callable[[int], Iterator[Tensors]]
"""The batches of an epoch."""


class Spent(NamedTuple):
    """What a block took, in seconds."""

    clock: float
    cpu: float


class Stopwatch:
    """Running since it was made."""

    def __init__(self) -> None:
        self.clock, self.cpu = perf_counter(), process_time()

    def read(self) -> Spent:
        """Time since the start."""
        return Spent(perf_counter() - self.clock, process_time() - self.cpu)


Block = Callable[[int], Spent]
"""Trains one epoch, given its number."""


def small_cnn() -> nn.Module:
    """About 2,000 parameters, for images of 1 x 16 x 16."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )


def make_data(samples: int) -> Tensors:
    """Noise around one random image for each class."""
    generator = torch.Generator().manual_seed(SEED)
    targets = torch.randint(0, 10, (samples,), generator=generator)
    centres = torch.randn(10, 1, 16, 16, generator=generator)
    return centres[targets] + torch.randn(samples, 1, 16, 16, generator=generator), targets


def sliced(data: Tensors) -> Batches:
    """Whole batches by indexing, in the order in which Paceline visits the samples."""
    images, targets = data

    def epoch_batches(epoch: int) -> Iterator[Tensors]:
        order = permutation(SEED, epoch, len(images))
        for start in range(0, len(order), BATCH):
            ids = order[start : start + BATCH]
            yield images[ids], targets[ids]

    return epoch_batches


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all arms that build their own."""
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)


def bare(model: nn.Module, batches: Batches) -> Block:
    """The textbook loop."""
    optimizer, losses = sgd(model), []

    def block(epoch: int) -> Spent:
        watch = Stopwatch()
        for step, (images, targets) in enumerate(batches(epoch), 1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            if step % LOG_EVERY == 0:
                losses.append(loss.item())
        return watch.read()

    return block


def paceline(model: nn.Module, data: Tensors, steps: int, rounds: int) -> Block:
    """The engine, as built from a config."""
    config = validate(
        {
            "name": "loop-overhead",
            "seed": SEED,
            "model": {"path": lambda: model},
            "data": {"path": lambda: (TensorData(*data), TensorData(*data)), "global_batch_size": BATCH},
            "optimizer": {"name": "sgd", "lr": LR, "momentum": MOMENTUM},
            # one epoch more than is run, since the end of training evaluates
            "trainer": {"epochs": rounds + 1, "log_every_n_steps": LOG_EVERY, "evaluate_every_n_epochs": 0},
            "scaling": {"num_workers": 0},
        }
    )
    reporter = MemoryReporter()
    trainer = build_trainer(config, Ranks.current(), reporter)

    def block(epoch: int) -> Spent:
        reporter.stop_at_step = (epoch + 1) * steps
        watch = Stopwatch()
        outcome = trainer.fit()
        spent = watch.read()
        assert outcome.stopped
        assert (outcome.step, outcome.epoch) == ((epoch + 1) * steps, epoch + 1)
        return spent

    return block


def fabric(model: nn.Module, batches: Batches) -> Block:
    """The loop of Lightning Fabric's documentation."""
    from lightning.fabric import Fabric

    driver = Fabric(accelerator="cpu", devices=1)
    driver.launch()
    wrapped, optimizer = driver.setup(model, sgd(model))
    losses: list[float] = []

    def block(epoch: int) -> Spent:
        watch = Stopwatch()
        for step, (images, targets) in enumerate(batches(epoch), 1):
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(images), targets)
            driver.backward(loss)
            optimizer.step()
            if step % LOG_EVERY == 0:
                losses.append(loss.item())
        return watch.read()

    return block


def lightning(model: nn.Module, batches: Batches) -> Block:
    """`Trainer.fit` for an epoch; model and optimizer outlive it."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.optimizer = sgd(model)

        def training_step(self, batch: Tensors, batch_idx: int) -> torch.Tensor:
            images, targets = batch
            loss = F.cross_entropy(self.model(images), targets)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def on_train_start(self) -> None:
            self.watch = Stopwatch()

        def on_train_end(self) -> None:
            self.spent = self.watch.read()

    class EpochBatches:
        epoch = 0

        def __iter__(self) -> Iterator[Tensors]:
            return batches(self.epoch)

    module, loader = Module(), EpochBatches()

    def block(epoch: int) -> Spent:
        loader.epoch = epoch
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=LOG_EVERY,
        )
        trainer.fit(module, loader)
        return module.spent

    return block


def accelerate(model: nn.Module, batches: Batches) -> Block:
    """The loop of Accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, sgd(model))
    losses: list[float] = []

    def block(epoch: int) -> Spent:
        watch = Stopwatch()
        for step, (images, targets) in enumerate(batches(epoch), 1):
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(images), targets)
            accelerator.backward(loss)
            optimizer.step()
            if step % LOG_EVERY == 0:
                losses.append(loss.item())
        return watch.read()

    return block


def run(rounds: int, steps: int) -> list[dict[str, Any]]:
    """Train all arms in turn; one row of the table for each."""
    initial, data = small_cnn(), make_data(steps * BATCH)
    builders: dict[str, Callable[[nn.Module], Block]] = {
        "bare": lambda model: bare(model, sliced(data)),
        "bare again": lambda model: bare(model, sliced(data)),
        "paceline": lambda model: paceline(model, data, steps, rounds + 1),
        "fabric": lambda model: fabric(model, sliced(data)),
        "lightning": lambda model: lightning(model, sliced(data)),
        "accelerate": lambda model: accelerate(model, sliced(data)),
    }
    models = {name: copy.deepcopy(initial) for name in builders}
    blocks = {name: build(models[name]) for name, build in builders.items()}
    spent: dict[str, list[Spent]] = {name: [] for name in blocks}
    for epoch in range(rounds + 1):
        permutation(SEED, epoch, steps * BATCH)  # kept by its cache, so that no arm pays for it
        for name in order_of(list(blocks), epoch):
            spent[name].append(without_gc(blocks[name], epoch))
        shown = ", ".join(f"{name} {1000 * values[-1].clock / steps:.3f}" for name, values in spent.items())
        print(f"round {epoch}{'' if epoch else ' (warm-up)'}: {shown} ms/step", file=sys.stderr, flush=True)
    return [row(name, spent, models, steps) for name in blocks]


def order_of(names: list[str], epoch: int) -> list[str]:
    """The arms in this round's order: each place and each neighbour comes to everyone."""
    shift = epoch // 2 % len(names)
    rotated = names[shift:] + names[:shift]
    return rotated if epoch % 2 == 0 else rotated[::-1]


def without_gc(block: Block, epoch: int) -> Spent:
    """The time of a block that no garbage collection interrupts."""
    gc.collect()
    gc.disable()
    try:
        return block(epoch)
    finally:
        gc.enable()


def row(name: str, spent: dict[str, list[Spent]], models: dict[str, nn.Module], steps: int) -> dict[str, Any]:
    """What is shown of one arm."""
    mine, theirs = spent[name][1:], spent["bare"][1:]
    return {
        "arm": name,
        "ms_per_step": 1000 * statistics.median(each.clock for each in mine) / steps,
        "by_clock": speed([each.clock for each in mine], [each.clock for each in theirs]),
        "by_cpu_time": speed([each.cpu for each in mine], [each.cpu for each in theirs]),
        "weights_max_difference": max_difference(models[name], models["bare"]),
        "ms_per_step_of_each_round": [1000 * each.clock / steps for each in mine],
        "cpu_ms_per_step_of_each_round": [1000 * each.cpu / steps for each in mine],
    }


def speed(mine: list[float], theirs: list[float]) -> dict[str, float]:
    """Samples/s relative to the other's in the same round: median and its 95 % interval."""
    ratios = [other / own for own, other in zip(mine, theirs, strict=True)]
    low, high = bootstrap(ratios)
    return {"ratio": statistics.median(ratios), "low": low, "high": high}


def bootstrap(values: list[float], resamples: int = 5000) -> tuple[float, float]:
    """95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


def max_difference(model: nn.Module, other: nn.Module) -> float:
    """Largest difference between two models' weights; 0 when they are equal bit by bit."""
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max(0.0 if torch.equal(mine, theirs) else float((mine - theirs).abs().max()) for mine, theirs in pairs)


def surroundings(rounds: int, steps: int) -> dict[str, Any]:
    """Where, with what and when this was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "rounds": rounds,
        "steps": steps,
        "batch": BATCH,
        "threads": torch.get_num_threads(),
    }


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(rows: list[dict[str, Any]], where: dict[str, Any]) -> str:
    """The table, and the surroundings under it."""
    lines = [f"{'arm':12} {'ms/step':>8} {'samples/s to bare':>23} {'by CPU time':>23}  final weights"]
    for each in rows:
        difference = each["weights_max_difference"]
        weights = f"differ by {difference:.1e}" if difference else "equal to the bit"
        ratios = (f"{each[by]['ratio']:.3f} ({each[by]['low']:.3f}-{each[by]['high']:.3f})" for by in RATIOS)
        lines.append(f"{each['arm']:12} {each['ms_per_step']:8.3f} {' '.join(f'{it:>23}' for it in ratios)}  {weights}")
    return "\n".join([*lines, "", ", ".join(f"{key} {value}" for key, value in where.items())])


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="measured rounds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of a block, a multiple of 10 (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON, with every round's times")
    args = parser.parse_args()
    if args.rounds < 1 or args.steps < LOG_EVERY or args.steps % LOG_EVERY:
        parser.error(f"--rounds must be at least 1, and --steps a multiple of {LOG_EVERY}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rows, where = run(args.rounds, args.steps), surroundings(args.rounds, args.steps)
    print(json.dumps({"arms": rows, **where}, indent=2) if args.json else table(rows, where))


if __name__ == "__main__":
    main()
