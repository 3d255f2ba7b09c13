"""What a training loop costs on top of the computation: bare PyTorch, Paceline, Fabric, Lightning and Accelerate.

    uv run --group bench python jobs/benchmarks/loop_overhead.py

All arms train the same small CNN (about 1 ms a step on a fast core, batch 32) on one thread: same initial weights, same
tensors in memory, same batch order, SGD with momentum at a constant rate, and the loss read every 10 steps. Each gets
whole batches, sliced from the tensors: the loop is compared, not the collation of samples.

Each arm trains in a thread of its own, and the arms take turns: one has the process to itself for `--steps` steps,
which are an epoch of its data, and then hands over. Turns of some 50 ms are shorter than most disturbances by other
load on the machine, so that those hit neighbouring turns alike and leave the ratios within a round alone. The first
rounds, with the start of each arm, do not count; garbage is collected between rounds. All of it is done in
`--processes` processes, one after the other: the memory layout of a process makes an arm faster or slower for good.

Shown are samples/s of an arm over those of `bare` in the same round, by the clock and by the CPU time of the thread.
Needs no GPU; takes some ten minutes.

bare         the textbook loop: index, zero_grad, forward, mean cross-entropy, backward, step; `loss.item()`.
bare again   the same (A/A): how far it is from 1 is the noise.
paceline     `build_trainer(config).fit()` as `paceline train` runs it, by default settings, on a model and a data set
             given as Python objects; the start and end of each epoch are in its turns, evaluation and checkpoints are
             not. `optimizer.fused: auto` updates all weights in one kernel, which rounds differently.
unfused      the same with `optimizer.fused: false`: the update of the textbook loop, bit by bit.
callbacks    unfused with three callbacks whose hooks do nothing.
fabric       bare's loop with `fabric.setup(model, optimizer)` and `fabric.backward(loss)`.
lightning    `Trainer.fit` of a LightningModule that logs its loss by `self.log`; no logger, no checkpoints.
accelerate   bare's loop with `accelerator.prepare(model, optimizer)` and `accelerator.backward(loss)`.
"""

import copy
import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from threading import Semaphore, Thread
from time import perf_counter, thread_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from harness import Benchmark, Part, Seconds, Target, loop_rows, orders
from torch import nn
from torch.nn import functional as F

from paceline import Callback, TrainContext
from paceline.config.experiment import validate
from paceline.data._tensors import TensorData
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.order import permutation
from paceline.engine.reporter import MemoryReporter

BATCH, LR, MOMENTUM, SEED, LOG_EVERY = 32, 0.01, 0.9, 0, 10
LEAST_RATIO = 0.97
"""Of bare PyTorch's samples/s, what Paceline's loop has with the same update, where a step takes about 1 ms."""

Backward = Callable[[torch.Tensor], None]
Tensors = tuple[torch.Tensor, torch.Tensor]
Batches = Iterator[Tensors]
HandOver = Callable[[], None]
"""Called by an arm after every read of its loss; returns when it is that arm's turn again."""
Arm = Callable[[HandOver], object]
"""Trains from start to end."""


class Turns:
    """An arm in a thread of its own, which runs only during its turns."""

    def __init__(self, arm: Arm, reads_per_turn: int) -> None:
        self.spent: list[Seconds] = []
        self._arm, self._reads_per_turn = arm, reads_per_turn
        self._reads = 0
        self._go, self._done = Semaphore(0), Semaphore(0)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Let the arm run for one turn."""
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
        self._started = Seconds(perf_counter(), thread_time())

    def _hand_over(self) -> None:
        self._reads += 1
        if self._reads % self._reads_per_turn:
            return
        now = Seconds(perf_counter(), thread_time())
        self.spent.append(Seconds(now.clock - self._started.clock, now.cpu - self._started.cpu))
        self._done.release()
        self._go.acquire()
        self._start()


def small_cnn() -> nn.Module:
    """About 2,000 parameters, for images of 1 x 16 x 16."""
    torch.manual_seed(SEED)
    first = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * 4 * 4, 10))


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


def textbook(model: nn.Module, optimizer: Any, backward: Backward, batches: Batches, hand_over: HandOver) -> None:
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


class Nothing(Callback):
    """A callback with a hook after each step that does nothing."""

    def on_step_end(self, ctx: TrainContext) -> None:
        """Do nothing."""


def paceline(model: nn.Module, data: Tensors, epochs: int, fused: bool | str = "auto", callbacks: int = 0) -> Arm:
    """The engine, as built from a config."""
    config = validate(
        {
            "name": "loop-overhead",
            "seed": SEED,
            "model": {"path": lambda: model},
            "data": {"path": lambda: (TensorData(*data), TensorData(*data)), "global_batch_size": BATCH},
            "callbacks": [{"path": Nothing}] * callbacks,
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
        build_trainer(config, DistContext.current(), reporter).fit()

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
    from lightning.pytorch import Callback as LightningCallback
    from lightning.pytorch import LightningModule, Trainer

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

    class HandingOver(LightningCallback):
        def __init__(self, hand_over: HandOver) -> None:
            self.hand_over = hand_over

        def on_train_batch_end(self, trainer: Trainer, module: Module, outs: Any, batch: Any, batch_idx: int) -> None:
            if (batch_idx + 1) % LOG_EVERY == 0:
                self.hand_over()

    class AllBatches:
        def __iter__(self) -> Batches:
            return sliced(data, epochs)

    def train(hand_over: HandOver) -> None:
        off = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
        settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "log_every_n_steps": LOG_EVERY, **off}
        Trainer(callbacks=[HandingOver(hand_over)], **settings).fit(Module(), AllBatches())

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
    "unfused": partial(paceline, fused=False),
    "callbacks": partial(paceline, fused=False, callbacks=3),
    "fabric": fabric,
    "lightning": lightning,
    "accelerate": accelerate,
}
PACKAGE_OF = {"fabric": "lightning", "lightning": "lightning", "accelerate": "accelerate"}

Measured = tuple[dict[str, list[Seconds]], dict[str, float]]
"""Of one process: the turns of each arm, and how far its weights are from those of bare."""


def measure(trial: int, rounds: int, warm_up: int, steps: int, names: list[str]) -> Measured:
    """All arms from their start, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # and no advice from libraries
    for name in ("", ".pytorch", ".fabric", ".pytorch.utilities.rank_zero"):
        logging.getLogger(f"lightning{name}").setLevel(logging.ERROR)
    initial, data = small_cnn(), make_data(steps * BATCH)
    models = {name: copy.deepcopy(initial) for name in random.Random(trial).sample(names, len(names))}
    epochs = warm_up + rounds
    turns = {name: Turns(ARMS[name](model, data, epochs), steps // LOG_EVERY) for name, model in models.items()}
    for epoch, order in enumerate(orders(names, epochs, seed=trial)):
        permutation(SEED, epoch, steps * BATCH)  # kept by its cache, so that no arm pays for it
        gc.freeze()  # makes the next collection look at new objects only
        gc.disable()
        for name in order:
            turns[name].take()
        gc.enable()
        gc.collect()
    differences = {name: max_difference(model, models["bare"]) for name, model in models.items()}
    return {name: turns[name].spent[warm_up:] for name in names}, differences


def max_difference(model: nn.Module, other: nn.Module) -> float:
    """Largest difference between two models' weights; 0 when they are equal bit by bit."""
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max(0.0 if torch.equal(mine, theirs) else float((mine - theirs).abs().max()) for mine, theirs in pairs)


def report(processes: list[Measured], steps: int) -> Part:
    """The table of all arms."""
    rows = loop_rows(processes, steps, as_speed=True)
    targets = [Target("unfused, samples/s to bare", row[2], least=LEAST_RATIO) for row in rows if row[0] == "unfused"]
    columns = ("loop", "ms a step", "samples/s to bare", "by CPU time", "final weights")
    return Part(columns, rows, targets, raw=processes)


def main() -> int:
    """Measure, and print the table."""
    benchmark = Benchmark("loop_overhead", __doc__, ("torch", "lightning", "accelerate", "paceline"), arms=list(ARMS))
    benchmark.number("--processes", 16, 1, "fresh processes, one after the other")
    benchmark.number("--rounds", 30, 2, "rounds of each process")
    benchmark.number("--warm-up", 10, 1, "rounds before these that do not count", least=0)
    benchmark.number("--steps", 20, 10, "steps of a turn, a multiple of 10", least=LOG_EVERY)
    args = benchmark.parse()
    if args.steps % LOG_EVERY:
        benchmark.parser.error(f"--steps takes a multiple of {LOG_EVERY}")
    missing = [arm for arm, package in PACKAGE_OF.items() if find_spec(package) is None]
    names = [name for name in ARMS if name in ("bare", *(args.arms or ARMS)) and name not in missing]
    benchmark.say(f"not installed, left out: {missing}. `uv run --group bench` has them." if missing else "started")
    processes = []
    for trial in range(args.processes):
        with get_context("spawn").Pool(1) as pool:
            processes.append(pool.apply(measure, (trial, args.rounds, args.warm_up, args.steps, names)))
        benchmark.say(f"process {trial + 1} of {args.processes} is done")
    return benchmark.finish({"loop": report(processes, args.steps)})


if __name__ == "__main__":
    sys.exit(main())
