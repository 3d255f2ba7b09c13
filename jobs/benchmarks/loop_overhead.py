"""What a training loop costs on top of the computation: bare PyTorch, Paceline, Fabric, Lightning and Accelerate.

    uv run --group bench python jobs/benchmarks/loop_overhead.py [--processes 16] [--rounds 30]

All arms train the same small CNN (about 1 ms a step on a fast core, batch 32) on one thread: same initial weights, same
tensors in memory, same batch order, SGD with momentum at a constant rate, and the loss read every 10 steps.

Each arm trains in a thread of its own, and the arms take turns: one has the process to itself for `--steps` steps,
which are an epoch of its data, and then hands over. A round is a turn of every arm, in a new random order. Turns of
some 50 ms are shorter than most disturbances by other load on the machine, so that those fall on neighbouring turns
alike and leave the ratios within a round alone. The first rounds, with the start of each arm, are thrown away; garbage
is collected between rounds. All of this is done in several processes, one after the other, since the layout of a
process's memory makes an arm faster or slower for good.

The table shows the samples/s of an arm over those of `bare` in the same round: the mean over the processes of each
one's median, with its 95 % bootstrap interval, by the clock and by the CPU time of the thread. `bare again` is the bare
loop a second time: how far it is from 1 is this machine's noise. Needs no GPU; takes some ten minutes.

Each arm gets whole batches, sliced from the tensors: what is compared is the loop, not the collation of samples.

bare         the textbook loop: index, zero_grad, forward, mean cross-entropy, backward, step; `loss.item()`.
paceline     `build_trainer(config).fit()` as `paceline train` runs it, by default settings, on the user's own model
             and data set given as Python objects; the start and end of each epoch are in its turns, evaluation and
             checkpoints are not. `optimizer.fused: auto` updates all weights in one kernel, which rounds differently.
not fused    the same with `optimizer.fused: false`: the update of the textbook loop, bit by bit.
fabric       bare's loop with `fabric.setup(model, optimizer)` and `fabric.backward(loss)`.
lightning    `Trainer.fit` of a LightningModule that logs its loss by `self.log`; no logger, checkpoints or progress
             bar.
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
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from threading import Semaphore, Thread
from time import perf_counter, thread_time
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from measuring import bootstrap, cpu_name
from torch import nn
from torch.nn import functional as F

from paceline.config.loading import validate
from paceline.data._tensors import TensorData
from paceline.engine.build import build_trainer
from paceline.engine.order import permutation
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter

BATCH, LR, MOMENTUM, SEED, LOG_EVERY = 32, 0.01, 0.9, 0, 10
WARM_UP_ROUNDS = 10
RATIOS = ("by_clock", "by_cpu_time")
PACKAGES = ("torch", "lightning", "accelerate", "paceline")

Tensors = tuple[torch.Tensor, torch.Tensor]
Batches = Iterator[Tensors]
HandOver = Callable[[], None]
"""Called by an arm after every read of its loss; returns when it is that arm's turn again."""
Arm = Callable[[HandOver], object]
"""Trains from start to end."""


class Spent(NamedTuple):
    """What a turn took, in seconds."""

    clock: float
    cpu: float


class Turns:
    """An arm in a thread of its own, which runs only during its turns."""

    def __init__(self, arm: Arm, reads_per_turn: int) -> None:
        self.spent: list[Spent] = []
        self._arm, self._reads_per_turn = arm, reads_per_turn
        self._reads = 0
        self._go, self._done = Semaphore(0), Semaphore(0)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Let the arm run for one turn.

        Raises:
            BaseException: what the arm raised.
        """
        self._go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        self._go.acquire()
        self._start()
        try:
            self._arm(self._hand_over)
        except BaseException as error:
            self._error = error
        self._done.release()

    def _start(self) -> None:
        self._started = Spent(perf_counter(), thread_time())

    def _hand_over(self) -> None:
        self._reads += 1
        if self._reads % self._reads_per_turn:
            return
        now = Spent(perf_counter(), thread_time())
        self.spent.append(Spent(now.clock - self._started.clock, now.cpu - self._started.cpu))
        self._done.release()
        self._go.acquire()
        self._start()


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


def sliced(data: Tensors, epochs: int) -> Batches:
    """Whole batches by indexing, in the order in which Paceline visits the samples."""
    images, targets = data
    for epoch in range(epochs):
        order = permutation(SEED, epoch, len(images))
        for start in range(0, len(order), BATCH):
            ids = order[start : start + BATCH]
            yield images[ids], targets[ids]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all arms that build their own."""
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)


def textbook(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    backward: Callable[[torch.Tensor], None],
    batches: Batches,
    hand_over: HandOver,
) -> None:
    """The loop that everybody writes."""
    losses = []
    for step, (images, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), targets)
        backward(loss)
        optimizer.step()
        if step % LOG_EVERY == 0:
            losses.append(loss.item())
            hand_over()


def bare(model: nn.Module, data: Tensors, epochs: int) -> Arm:
    """The textbook loop."""
    return lambda hand_over: textbook(model, sgd(model), torch.Tensor.backward, sliced(data, epochs), hand_over)


def paceline(model: nn.Module, data: Tensors, epochs: int, fused: bool | str = "auto") -> Arm:
    """The engine, as built from a config."""
    config = validate(
        {
            "name": "loop-overhead",
            "seed": SEED,
            "model": {"path": lambda: model},
            "data": {"path": lambda: (TensorData(*data), TensorData(*data)), "global_batch_size": BATCH},
            "optimizer": {"name": "sgd", "lr": LR, "momentum": MOMENTUM, "fused": fused},
            "trainer": {"epochs": epochs, "log_every_n_steps": LOG_EVERY, "evaluate_every_n_epochs": 0},
            "scaling": {"num_workers": 0},
        }
    )

    class HandingOver(MemoryReporter):
        def metrics(self, step: int, values: dict[str, float]) -> None:
            super().metrics(step, values)
            if "train/loss" in values:
                self.hand_over()

    def train(hand_over: HandOver) -> None:
        reporter = HandingOver()
        reporter.hand_over = hand_over
        build_trainer(config, Ranks.current(), reporter).fit()

    return train


def fabric(model: nn.Module, data: Tensors, epochs: int) -> Arm:
    """The loop of Lightning Fabric's documentation."""
    from lightning.fabric import Fabric

    driver = Fabric(accelerator="cpu", devices=1)
    driver.launch()
    wrapped, optimizer = driver.setup(model, sgd(model))
    return lambda hand_over: textbook(wrapped, optimizer, driver.backward, sliced(data, epochs), hand_over)


def lightning(model: nn.Module, data: Tensors, epochs: int) -> Arm:
    """`Trainer.fit`, all epochs as one."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Tensors, batch_idx: int) -> torch.Tensor:
            images, targets = batch
            loss = F.cross_entropy(self.model(images), targets)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(model)

    class HandingOver(Callback):
        def __init__(self, hand_over: HandOver) -> None:
            self.hand_over = hand_over

        def on_train_batch_end(
            self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if (batch_idx + 1) % LOG_EVERY == 0:
                self.hand_over()

    class AllBatches:
        def __iter__(self) -> Batches:
            return sliced(data, epochs)

    def train(hand_over: HandOver) -> None:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            callbacks=[HandingOver(hand_over)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=LOG_EVERY,
        )
        trainer.fit(Module(), AllBatches())

    return train


def accelerate(model: nn.Module, data: Tensors, epochs: int) -> Arm:
    """The loop of Accelerate's documentation."""
    from accelerate import Accelerator

    driver = Accelerator(cpu=True)
    wrapped, optimizer = driver.prepare(model, sgd(model))
    return lambda hand_over: textbook(wrapped, optimizer, driver.backward, sliced(data, epochs), hand_over)


ARMS = {
    "bare": bare,
    "bare again": bare,
    "paceline": paceline,
    "not fused": partial(paceline, fused=False),
    "fabric": fabric,
    "lightning": lightning,
    "accelerate": accelerate,
}


def run(trials: int, rounds: int, steps: int, names: list[str]) -> list[dict[str, Any]]:
    """Train all arms in turn; one row of the table for each."""
    spent: dict[str, list[list[Spent]]] = {name: [] for name in names}
    differences: dict[str, float] = dict.fromkeys(names, 0.0)
    for trial in range(trials):
        with get_context("spawn").Pool(1) as pool:
            each_spent, each_difference = pool.apply(measure, (trial, rounds, steps, names))
        for name in names:
            spent[name].append(each_spent[name])
            differences[name] = max(differences[name], each_difference[name])
        shown = ", ".join(f"{name} {milliseconds(each_spent[name], steps):.3f}" for name in names)
        print(f"process {trial + 1} of {trials}: {shown} ms/step", file=sys.stderr, flush=True)
    return [row(name, spent, differences[name], steps) for name in names]


def measure(trial: int, rounds: int, steps: int, names: list[str]) -> tuple[dict[str, list[Spent]], dict[str, float]]:
    """All arms from their start: the turns of each, and how far its weights are from those of bare."""
    quiet()
    epochs = WARM_UP_ROUNDS + rounds
    draw = random.Random(trial)
    initial, data = small_cnn(), make_data(steps * BATCH)
    models = {name: copy.deepcopy(initial) for name in draw.sample(names, len(names))}
    turns = {name: Turns(ARMS[name](model, data, epochs), steps // LOG_EVERY) for name, model in models.items()}
    for epoch in range(epochs):
        permutation(SEED, epoch, steps * BATCH)  # kept by its cache, so that no arm pays for it
        without_gc(lambda: [turns[name].take() for name in draw.sample(names, len(names))])
    differences = {name: max_difference(model, models["bare"]) for name, model in models.items()}
    return {name: each.spent[WARM_UP_ROUNDS:] for name, each in turns.items()}, differences


def without_gc(play: Callable[[], object]) -> None:
    """Run something that no garbage collection interrupts."""
    gc.freeze()  # makes the next collection look at new objects only
    gc.disable()
    play()
    gc.enable()
    gc.collect()


def quiet() -> None:
    """One thread for the computation, and no advice from libraries."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)


def milliseconds(spent: list[Spent], steps: int) -> float:
    """Of a step, in the median turn."""
    return 1000 * statistics.median(each.clock for each in spent) / steps


def row(name: str, spent: dict[str, list[list[Spent]]], difference: float, steps: int) -> dict[str, Any]:
    """What is shown of one arm."""
    return {
        "arm": name,
        "ms_per_step": milliseconds([turn for trial in spent[name] for turn in trial], steps),
        "by_clock": speed(spent[name], spent["bare"], lambda turn: turn.clock),
        "by_cpu_time": speed(spent[name], spent["bare"], lambda turn: turn.cpu),
        "weights_max_difference": difference,
        "turns": [[turn._asdict() for turn in trial] for trial in spent[name]],
    }


def speed(mine: list[list[Spent]], theirs: list[list[Spent]], seconds: Callable[[Spent], float]) -> dict[str, float]:
    """Samples/s relative to the other's in the same round: the mean over processes of each one's median."""
    medians = [
        statistics.median(seconds(other) / seconds(own) for own, other in zip(turns, others, strict=True))
        for turns, others in zip(mine, theirs, strict=True)
    ]
    low, high = bootstrap(medians, statistics.fmean)
    return {"ratio": statistics.fmean(medians), "low": low, "high": high}


def max_difference(model: nn.Module, other: nn.Module) -> float:
    """Largest difference between two models' weights; 0 when they are equal bit by bit."""
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max(0.0 if torch.equal(mine, theirs) else float((mine - theirs).abs().max()) for mine, theirs in pairs)


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """Where, with what and when this was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "processes": args.processes,
        "rounds": args.rounds,
        "steps": args.steps,
        "batch": BATCH,
        "threads": 1,
    }


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
    parser.add_argument("--processes", type=int, default=16, help="one after the other (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="measured rounds of each process (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn, a multiple of 10 (%(default)s)")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS, help="only these; bare must be one")
    parser.add_argument("--json", action="store_true", help="print JSON, with every round's times")
    args = parser.parse_args()
    if min(args.processes, args.rounds) < 1 or args.steps < LOG_EVERY or args.steps % LOG_EVERY:
        parser.error(f"--processes and --rounds must be at least 1, and --steps a multiple of {LOG_EVERY}")
    if "bare" not in args.arms:
        parser.error("--arms must have bare, to which the others are compared")
    rows = run(args.processes, args.rounds, args.steps, args.arms)
    where = surroundings(args)
    print(json.dumps({"arms": rows, **where}, indent=2) if args.json else table(rows, where))


if __name__ == "__main__":
    main()
