"""The part `raw` of scaling.py: Paceline on Ray, its loop without Ray, and the textbook DDP loop, which take turns.

Each arm is two processes that are up all the time, with one model, one order of samples and one optimizer. A hook
before the forward pass of the model, the gate, is the same in every arm and lets none compute but in its turn:

driver         start the arms  ->  rounds: a turn of each  ->  compare the final weights
each process   forward of a turn's first step waits at the gate  ->  warm-up steps  ->  timed steps  ->  waits again
"""

import json
import math
import multiprocessing
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import psutil
import torch
import torch.distributed as dist
from harness import ArmFailed, Seconds, take_turns
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from paceline.cluster.preflight import worker_threads
from paceline.config.batch_sizes import batch_sizes
from paceline.config.experiment import ExperimentConfig, validate
from paceline.engine.build import build_trainer
from paceline.engine.build_task import seed_model
from paceline.engine.dist_context import DistContext
from paceline.engine.loading import SeededFetcher
from paceline.engine.order import permutation
from paceline.engine.plan import TrainPlan
from paceline.engine.reporter import MemoryReporter
from paceline.lr_schedulers.base import LRSchedulerConfig

PROCESSES = multiprocessing.get_context("spawn")
WORKERS = 2
WEIGHTS = "weights.safetensors"
LIMIT_SECONDS = 300.0
"""For a start, a turn and an end."""
SETTLE_SECONDS = 0.05
"""Between two turns: what was stopped may then catch up."""
REST_SECONDS, AT_REST = 60.0, 0.1
"""How long an arm that is up may still be busy, importing what it needs later; and the cores that it takes at rest."""


@dataclass(frozen=True)
class Work:
    """The task of all arms."""

    config: ExperimentConfig
    turns: int
    warm_up: int
    steps: int
    """Timed steps of a turn."""

    @property
    def total_steps(self) -> int:
        """In the forward pass of the last one, the arm learns that there are no more turns."""
        return self.turns * (self.warm_up + self.steps) + 1

    def gated(self, address: str) -> ExperimentConfig:
        """The config of an arm, whose model is behind a gate."""
        args = {"address": address, "warm_up": self.warm_up, "steps": self.steps}
        args["config_json"] = self.config.model_dump_json()
        changes = {"trainer.max_steps": self.total_steps, "model": {"path": "scaling_ddp:gated_model", "args": args}}
        return self.config.with_overrides(changes)


class Gate:
    """A hook before the model's forward pass in training, which returns once the arm may compute."""

    def __init__(self, address: str, warm_up: int, steps: int) -> None:
        self._address, self._warm_up, self._steps = address, warm_up, steps
        self._left = 0.0
        self._pipe: Any = None
        self._started: Seconds | None = None

    def __call__(self, model: Any, inputs: Any) -> None:
        if not model.training:
            return
        if self._left == 0:
            self._hand_over()
        elif self._left == self._steps:
            self._started = Seconds(perf_counter(), process_time())
        self._left -= 1

    def _hand_over(self) -> None:
        if self._pipe is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._address)
            self._pipe = connection.makefile("rw")
        end = Seconds(perf_counter(), process_time())
        spent = self._started and (end.clock - self._started.clock, end.cpu - self._started.cpu)
        print(json.dumps(spent), file=self._pipe, flush=True)
        answer = self._pipe.readline()
        if not answer:
            raise ConnectionError("the benchmark has ended")
        self._left = self._warm_up + self._steps if json.loads(answer) else math.inf


def gated_model(config_json: str, address: str, warm_up: int, steps: int) -> Any:
    """The model of a config, behind a gate."""
    model = validate(json.loads(config_json)).model.build()
    model.register_forward_pre_hook(Gate(address, warm_up, steps))
    return model


# --- the arms, each in processes of its own ----------------------------------------------------------------------


def raw(work: Work, address: str, folder: Path, rank: int) -> None:
    """The textbook DDP loop. Samples, their order and the learning rates are Paceline's."""
    _join(work, folder, rank)
    config = work.gated(address)
    seed_model(config.seed)
    model = config.model.build()
    trained = DistributedDataParallel(model)
    rate = config.optimizer.scaled_lr(config.data.global_batch_size)
    optimizer = config.optimizer.build(dict(model.named_parameters()), rate, config.optimizer.wants_fused("cpu", True))
    batches, factor = _batches(config, rank)
    losses = []
    for step, (images, targets) in zip(range(work.total_steps), batches, strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(trained(images), targets)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * factor(step)
        optimizer.step()
        if (step + 1) % config.trainer.log_every_n_steps == 0:
            losses.append(loss.item())
    _part(model.state_dict(), folder, rank)


def engine(work: Work, address: str, folder: Path, rank: int) -> None:
    """Paceline's loop in processes that are started as those of `raw`: without Ray, and nothing is recorded."""
    _join(work, folder, rank)
    trainer = build_trainer(work.gated(address), DistContext.current(), MemoryReporter())
    trainer.fit()
    _part(trainer.state.model_tensors(), folder, rank)


def on_ray(work: Work, address: str, folder: Path, rank: int) -> None:
    """`train` as anybody calls it: with a private Ray, a recorder, and MLflow on SQLite."""
    os.environ["RAY_TMPDIR"] = str(folder)
    from paceline import train
    from paceline.cluster.listener import SilentListener

    places = {"storage.path": str(folder / "runs"), "tracking.uri": f"sqlite:///{folder / 'mlflow.db'}"}
    result = train(work.gated(address).with_overrides(places), listener=SilentListener())
    shutil.copy(Path(result.checkpoint) / "model.safetensors", folder / WEIGHTS)


Arm = Callable[[Work, str, Path, int], None]
ARMS: dict[str, tuple[Arm, bool]] = {
    "raw DDP": (raw, True),
    "raw DDP again": (raw, True),
    "Paceline without Ray": (engine, True),
    "Paceline on Ray": (on_ray, False),
}
"""What a process of an arm runs, and whether there is one for each rank."""
FIRST, _, LOOP, RAY = ARMS


def _join(work: Work, folder: Path, rank: int) -> None:
    """Form a process group, as torchrun's processes do."""
    torch.set_num_threads(worker_threads(work.config))
    dist.init_process_group("gloo", f"file://{folder / 'rendezvous'}", rank=rank, world_size=WORKERS)


def _part(weights: Mapping[str, torch.Tensor], folder: Path, rank: int) -> None:
    """Save the final weights, and leave the process group."""
    if rank == 0:
        save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    dist.barrier()
    dist.destroy_process_group()


def _batches(config: ExperimentConfig, rank: int) -> tuple[Iterator[Any], Callable[[int], float]]:
    """This rank's batches without end, and the learning rate's factor at each step."""
    training, _ = config.data.build()
    fetcher = SeededFetcher(training, config.seed)
    batch, samples = config.data.global_batch_size, len(fetcher)
    steps = samples // batch

    def batches() -> Iterator[Any]:
        for epoch in range(10**9):
            order = permutation(config.seed, epoch, samples)
            for step in range(steps):
                yield fetcher.fetch(epoch, order[step * batch : (step + 1) * batch].tensor_split(WORKERS)[rank])

    plan = TrainPlan(config.trainer, config.checkpoint, steps)
    warmup = config.lr_scheduler.warmup_length(steps, batch_sizes(config).global_batch_size)
    return batches(), LRSchedulerConfig.of(config.lr_scheduler).build(plan.total_steps, warmup, steps)


def run_arm(name: str, work: Work, address: str, folder: Path, rank: int) -> None:
    """The first function of an arm's process; its output goes into a file."""
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    code = 1
    try:
        ARMS[name][0](work, address, folder, rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: gloo's threads, which Python does not know, now and then abort a process that tidies up


# --- the driver --------------------------------------------------------------------------------------------------


class RunningArm:
    """An arm whose processes are up, and wait for their turn."""

    def __init__(self, name: str, work: Work, folder: Path) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        address = str(folder / "gate")
        self._server = socket.create_server(address, family=socket.AF_UNIX)
        ranks = range(WORKERS if ARMS[name][1] else 1)
        arguments = [(name, work, address, folder, rank) for rank in ranks]
        self._processes = [PROCESSES.Process(target=run_arm, args=each) for each in arguments]
        for process in self._processes:
            process.start()
        self._pipes: list[tuple[socket.socket, Any]] = []

    def await_gate(self) -> None:
        """Wait until all ranks stand before their first turn, and do next to nothing: starting is not measured."""
        while len(self._pipes) < WORKERS:
            self._await(self._server)
            connection, _ = self._server.accept()
            self._pipes.append((connection, connection.makefile("rw")))
        self._hear()
        deadline, is_busy = monotonic() + REST_SECONDS, True
        while is_busy and monotonic() < deadline:
            before = self._cpu_seconds()
            sleep(1.0)
            is_busy = self._cpu_seconds() - before > AT_REST

    def take_turn(self) -> Seconds:
        """Let all ranks train for a turn: the time of the slowest, and the CPU time of all together."""
        self._say(True)
        windows = [Seconds(*answer) for answer in self._hear()]
        return Seconds(max(each.clock for each in windows), sum(each.cpu for each in windows))

    def finish(self) -> Path:
        """Let the arm come to its end; the file with its final weights."""
        self._say(False)
        for process in self._processes:
            process.join(LIMIT_SECONDS)
            if process.exitcode != 0:
                raise self._failure(f"exit code {process.exitcode} at the end")
        return self.folder / WEIGHTS

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """For the length of the body, all processes of the arm, and those that they have started, are stopped."""
        stopped = self.tree()
        try:
            self._signal(stopped, SIGSTOP)
            yield
        finally:
            self._signal(stopped, SIGCONT)

    def tree(self) -> list[psutil.Process]:
        """All processes of the arm."""
        found = []
        for process in self._processes:
            with suppress(psutil.Error):
                root = psutil.Process(process.pid)
                found += [*root.children(recursive=True), root]
        return found

    def end(self) -> None:
        """End what is still running, with all that it has started."""
        self._signal(self.tree(), SIGKILL)
        for process in self._processes:
            process.join(10)
        self._server.close()

    def _signal(self, processes: Sequence[psutil.Process], number: int) -> None:
        for each in processes:
            with suppress(psutil.Error):
                each.send_signal(number)

    def _cpu_seconds(self) -> float:
        total = 0.0
        for each in self.tree():
            with suppress(psutil.Error):
                total += sum(each.cpu_times()[:2])
        return total

    def _say(self, continues: bool) -> None:
        for _, pipe in self._pipes:
            with suppress(BrokenPipeError):  # it has died, as its exit code will tell
                print(json.dumps(continues), file=pipe, flush=True)

    def _hear(self) -> list[Any]:
        heard = []
        for connection, pipe in self._pipes:
            self._await(connection)
            line = pipe.readline()
            if not line:
                raise self._failure("a process died")
            heard.append(json.loads(line))
        return heard

    def _await(self, source: socket.socket) -> None:
        """Wait until there is something to read."""
        deadline = monotonic() + LIMIT_SECONDS
        while not wait([source], 0.5):
            if any(process.exitcode is not None for process in self._processes) or monotonic() > deadline:
                raise self._failure(f"a process ended, or gave no answer within {LIMIT_SECONDS:g} s")

    def _failure(self, reason: str) -> ArmFailed:
        for process in self._processes:
            process.join(2)  # it may be about to say why
        logs = [file.read_text(errors="replace").splitlines()[-15:] for file in sorted(self.folder.glob("log-*"))]
        return ArmFailed("\n".join([f"{self.name}: {reason}", *(line for lines in logs for line in lines)]))


Launch = tuple[dict[str, list[Seconds]], dict[str, float]]
"""By arm the windows of a launch, and how far its final weights are from the first arm's: 0 when equal to the bit."""


def launch(work: Work, names: Sequence[str], folder: Path, seed: int) -> Launch:
    """Start the arms, let them take their turns and end."""
    arms: dict[str, RunningArm] = {}
    try:
        for number, name in enumerate(names):
            arms[name] = RunningArm(name, work, folder / str(number))
            arms[name].await_gate()  # one after the other: they would take each other's cores
        windows, failures = take_turns({name: partial(_turn, arms, name) for name in names}, work.turns, seed)
        if failures:
            raise ArmFailed("\n".join(failures.values()))
        files = {name: arm.finish() for name, arm in arms.items()}
        return windows, {name: max_difference(file, files[names[0]]) for name, file in files.items()}
    finally:
        for arm in arms.values():
            arm.end()


def _turn(arms: Mapping[str, RunningArm], name: str) -> Seconds:
    """A turn of an arm, without Ray taking time from those that do without. It is stopped for one turn at a time: its
    processes look after each other, and would take a longer silence for death."""
    sleep(SETTLE_SECONDS)
    with arms[RAY].stopped() if name != RAY and RAY in arms else nullcontext():
        return arms[name].take_turn()


def max_difference(file: Path, other: Path) -> float:
    """Largest difference between the weights in two files; 0 when they are equal to the bit."""
    mine, theirs = load_file(file), load_file(other)
    if mine.keys() != theirs.keys():
        raise ArmFailed(f"{file} and {other} hold different models")
    equal = all(torch.equal(mine[name], theirs[name]) for name in mine)
    return 0.0 if equal else max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine)
