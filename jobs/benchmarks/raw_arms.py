"""The arms of raw_ddp.py, as they run in processes of their own: behind a gate, so that one computes at a time.

each process:   forward of the first step of a turn waits at the gate  ->  warm-up steps  ->  timed steps  ->  waits
"""

import json
import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

WEIGHTS = "weights.safetensors"
OF_A_JOB = ("RAY_ADDRESS", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR")


class Window(NamedTuple):
    """The timed steps of a turn, as one process saw them."""

    seconds: float
    cpu_seconds: float
    """Of all threads of that process."""


@dataclass(frozen=True)
class Work:
    """What all arms do. Travels as plain values."""

    config_json: str
    workers: int
    cuda: bool
    turns: int
    warm_up: int
    steps: int
    """Timed steps of a turn."""

    @property
    def total_steps(self) -> int:
        """In the forward pass of the last one, the arm learns that there are no more turns."""
        return self.turns * (self.warm_up + self.steps) + 1


class Gate:
    """A hook before the model's forward pass in training, which returns once the arm may compute.

    Args:
        address: path of the arm's socket.
    """

    def __init__(self, address: str, warm_up: int, steps: int) -> None:
        self._address, self._warm_up, self._steps = address, warm_up, steps
        self._left = 0.0
        self._pipe: Any = None
        self._started: Window | None = None

    def __call__(self, model: Any, inputs: Any) -> None:
        if not model.training:
            return
        if self._left == 0:
            self._hand_over()
        elif self._left == self._steps:
            self._started = self._now()
        self._left -= 1

    def _hand_over(self) -> None:
        if self._pipe is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._address)
            self._pipe = connection.makefile("rw")
        end, start = self._now(), self._started
        print(json.dumps(start and [after - before for after, before in zip(end, start, strict=True)]), file=self._pipe)
        self._pipe.flush()
        answer = self._pipe.readline()
        if not answer:
            raise ConnectionError("the benchmark has ended")
        self._left = self._warm_up + self._steps if json.loads(answer) else math.inf

    def _now(self) -> Window:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return Window(perf_counter(), process_time())


def gated_model(config_json: str, address: str, warm_up: int, steps: int) -> Any:
    """The model of a config, behind a gate."""
    from paceline.config.loading import validate

    model = validate(json.loads(config_json)).model.build()
    model.register_forward_pre_hook(Gate(address, warm_up, steps))
    return model


# --- the arms, each in processes of its own ----------------------------------------------------------------------


def raw(work: Work, address: str, folder: Path, rank: int) -> None:
    """The textbook DDP loop. Where a sample comes from, how it is made and in which order, is Paceline's."""
    import torch
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    from paceline.engine.build import seed_model
    from paceline.engine.prepare import MEMORY_FORMATS, apply_process_settings

    config, device = _begin(work, folder, rank)
    apply_process_settings(config.trainer)
    seed_model(config.seed)
    layout = MEMORY_FORMATS[config.trainer.memory_format]
    model = gated_model(work.config_json, address, work.warm_up, work.steps).to(device, memory_format=layout)
    trained = DistributedDataParallel(model) if work.workers > 1 else model
    rate, fused = config.optimizer.scaled_lr(config.data.global_batch_size), _wants_fused(config, model, device)
    optimizer = config.optimizer.build(model.parameters(), rate, fused)
    half = config.trainer.precision == "bf16-mixed"
    batches, factor = _batches(config, work, device, rank)
    losses = []
    for step, (images, targets) in zip(range(work.total_steps), batches, strict=False):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = F.cross_entropy(trained(images), targets, label_smoothing=config.task.label_smoothing)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * factor(step)
        optimizer.step()
        if (step + 1) % config.trainer.log_every_n_steps == 0:
            losses.append(loss.item())
    _end(model.state_dict(), folder, rank)


def engine(work: Work, address: str, folder: Path, rank: int) -> None:
    """Paceline's loop in processes that are started as those of `raw`: without Ray, and nothing is recorded."""
    from paceline.engine.build import build_trainer
    from paceline.engine.ranks import Ranks
    from paceline.engine.reporter import MemoryReporter

    _, device = _begin(work, folder, rank)
    trainer = build_trainer(_gated(work, address), Ranks.current(device), MemoryReporter())
    trainer.fit()
    _end(trainer.state.model_tensors(), folder, rank)


def on_ray(work: Work, address: str, folder: Path, rank: int) -> None:
    """`train` as anybody calls it: with a private Ray, a recorder, and MLflow on SQLite."""
    import shutil

    for name in OF_A_JOB:
        os.environ.pop(name, None)
    os.environ.update(RAY_TMPDIR=str(folder), RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
    from paceline import train
    from paceline.cluster.listener import SilentListener

    places = {"storage.path": str(folder / "runs"), "tracking.uri": f"sqlite:///{folder / 'mlflow.db'}"}
    result = train(_gated(work, address).with_overrides(places), listener=SilentListener())
    shutil.copy(Path(result.checkpoint) / "model.safetensors", folder / WEIGHTS)


Arm = Callable[[Work, str, Path, int], None]
ARMS: dict[str, tuple[Arm, bool]] = {
    "raw DDP": (raw, True),
    "raw DDP again": (raw, True),
    "Paceline without Ray": (engine, True),
    "Paceline on Ray": (on_ray, False),
}
"""What a process of an arm runs, and whether there is one for each rank."""
FIRST, AGAIN, LOOP, RAY = ARMS


def _begin(work: Work, folder: Path, rank: int) -> tuple[Any, Any]:
    """Join the others, as torchrun's processes do; the config and the device."""
    import torch
    import torch.distributed as dist

    from paceline.cluster.preflight import worker_threads
    from paceline.config.loading import validate

    config = validate(json.loads(work.config_json))
    torch.set_num_threads(worker_threads(config))
    device = torch.device("cuda", rank) if work.cuda else torch.device("cpu")
    if work.cuda:
        torch.cuda.set_device(device)
    method = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("nccl" if work.cuda else "gloo", method, rank=rank, world_size=work.workers)
    return config, device


def _end(weights: Mapping[str, Any], folder: Path, rank: int) -> None:
    """Write the final weights down, and part from the others."""
    import torch.distributed as dist
    from safetensors.torch import save_file

    if rank == 0:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    dist.barrier()
    dist.destroy_process_group()


def _gated(work: Work, address: str) -> Any:
    from paceline.config.loading import validate

    args = {"config_json": work.config_json, "address": address, "warm_up": work.warm_up, "steps": work.steps}
    return validate({**json.loads(work.config_json), "model": {"path": "raw_arms:gated_model", "args": args}})


def _wants_fused(config: Any, model: Any, device: Any) -> bool:
    from paceline.optimizers._state import is_fusable

    return bool(config.optimizer.wants_fused(device.type, all(map(is_fusable, model.parameters()))))


def _batches(config: Any, work: Work, device: Any, rank: int) -> tuple[Iterator[Any], Callable[[int], float]]:
    """This rank's batches without end, and the learning rate's factor at each step."""
    from paceline.config.batch_sizes import batch_sizes
    from paceline.engine.build import build_schedule
    from paceline.engine.caching import cached
    from paceline.engine.loading import SeededFetcher, Transfer
    from paceline.engine.order import permutation
    from paceline.engine.plan import Plan
    from paceline.engine.prepare import MEMORY_FORMATS

    training, _ = config.data.build()
    fetcher = cached(SeededFetcher(training, config.seed), config.data.cache, device)
    to_device = Transfer(device, None, MEMORY_FORMATS[config.trainer.memory_format])
    batch, samples = config.data.global_batch_size, len(fetcher)
    steps = samples // batch

    def batches() -> Iterator[Any]:
        for epoch in range(10**9):
            order = permutation(config.seed, epoch, samples)
            for step in range(steps):
                ids = order[step * batch : (step + 1) * batch].tensor_split(work.workers)[rank]
                yield to_device(fetcher.fetch(epoch, ids))

    plan = Plan(config.trainer, config.checkpoint, steps)
    return batches(), build_schedule(config, plan, batch_sizes(config))


def run_arm(name: str, work: Work, address: str, folder: Path, rank: int) -> None:
    """The first function of an arm's process: what it prints goes into a file."""
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
