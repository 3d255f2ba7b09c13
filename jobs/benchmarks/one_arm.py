"""One arm of techniques.py: a Paceline trainer in a process of its own, which trains when it is told to."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves

from paceline.config.loading import validate
from paceline.engine.build import build_trainer
from paceline.engine.passes import Batches
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256

SECOND_STEP = "second step"
WARM_UP_SHARE = 4
"""A turn begins with a quarter as many steps that are not timed: they fill the device's memory pool and use up what
loader processes have got ready meanwhile."""


class Turn(NamedTuple):
    """What was timed of a turn."""

    seconds: float
    cpu_seconds: float
    """Of this process, without those of the loader's."""
    steps: int
    samples: int


class Training:
    """A trainer that is driven step by step."""

    def __init__(self, tree: dict[str, Any], changes: dict[str, Any], device: str) -> None:
        self.device = torch.device(device)
        self._reporter = MemoryReporter()
        config = validate(tree).with_overrides(changes)
        self._trainer = build_trainer(config, Ranks.current(self.device), self._reporter)
        self._trainer.state.task.train()
        self._batches = self._all_batches()

    def step(self) -> int:
        """One optimizer step; returns its samples."""
        samples = self._trainer.train_step(self._batches)
        self._trainer.state.position.advance(samples, epoch_is_over=False)
        return samples

    def read_loss(self) -> float:
        """The mean loss since the last reading. Waits for the device."""
        return self._trainer.running.read()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def steps_with_loss(self, count: int) -> list[float]:
        """The loss of each of some steps."""
        losses = []
        for _ in range(count):
            self.step()
            losses.append(self.read_loss())
        return losses

    def facts(self) -> dict[str, Any]:
        """What is known of it now: number of parameters, hash of the weights, warnings."""
        state = self._trainer.state
        return {
            "parameters": sum(parameter.numel() for parameter in state.task.parameters()),
            "weights_sha256": weights_sha256(state.model_tensors()),
            "warnings": [details["message"] for kind, details in self._reporter.events if kind == "warning"],
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        }

    def state_bytes(self) -> int:
        """Bytes of weights, buffers and optimizer state."""
        state = self._trainer.state
        return _bytes([*state.task.parameters(), *state.task.buffers(), *tree_leaves(dict(state.optimizer.state))])

    def data_bytes(self) -> int:
        """Bytes of the data sets, as far as they are on the device."""
        fetchers = [loader.fetcher for loader in (self._trainer.train_loader, self._trainer.validation_loader)]
        holders = [*fetchers, *(fetcher.dataset for fetcher in fetchers if hasattr(fetcher, "dataset"))]
        leaves = tree_leaves([vars(holder) for holder in holders])
        return _bytes(
            [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type == self.device.type]
        )

    def close(self) -> None:
        """End the loader processes."""
        self._trainer.train_loader.close()
        self._trainer.validation_loader.close()

    def _all_batches(self) -> Batches:
        for epoch in range(10**9):
            yield from self._trainer.train_loader.load(epoch, self._trainer.order.micro_batches(epoch, 0))


def _bytes(leaves: list[Any]) -> int:
    storages = [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def first_two_steps(training: Training) -> tuple[list[float], int]:
    """Losses of the first two steps, and the peak of the memory that tensors take during the second, in bytes.

    That is weights, buffers, optimizer state, gradients, activations and the batch; data sets are left out.
    """
    measure = _on_cuda if training.device.type == "cuda" else _on_cpu
    return measure(training)


def _on_cuda(training: Training) -> tuple[list[float], int]:
    losses = training.steps_with_loss(1)
    torch.cuda.reset_peak_memory_stats(training.device)
    losses += training.steps_with_loss(1)
    return losses, torch.cuda.max_memory_allocated(training.device) - training.data_bytes()


def _on_cpu(training: Training) -> tuple[list[float], int]:
    before = training.state_bytes()
    # from the first step on: of what was allocated earlier, the profiler does not see how it is freed
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        losses = training.steps_with_loss(1)
        with record_function(SECOND_STEP):
            losses += training.steps_with_loss(1)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return losses, before + max(_held_in_second_step(events))


def _held_in_second_step(events: list[Any]) -> Iterator[int]:
    held, is_second = 0, False
    for event in events:
        is_second = is_second or event.name() == SECOND_STEP
        if event.name() == "[memory]":
            held += event.nbytes()  # negative when it is freed
        if is_second:
            yield held


def take_turn(training: Training, steps: int) -> Turn:
    """Warm up, and time some steps. Leaves no unused memory with the device's allocator, for the other arms."""
    for _ in range(-(-steps // WARM_UP_SHARE)):
        training.step()
    training.wait()
    start, cpu_start = perf_counter(), process_time()
    samples = sum(training.step() for _ in range(steps))
    training.wait()
    turn = Turn(perf_counter() - start, process_time() - cpu_start, steps, samples)
    training.read_loss()
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    return turn


def serve(
    pipe: Connection, tree: dict[str, Any], changes: dict[str, Any], device: str, threads: int, checked_steps: int
) -> None:
    """Send the facts, then a turn for each number of seconds that comes; an error's text instead of either.

    The facts hold the losses of the first `checked_steps` steps, at least 3.
    """
    try:
        multiprocessing.set_start_method(None, force=True)  # else loader processes would be made as this one was
        torch.set_num_threads(threads)
        training = Training(tree, changes, device)
        losses, peak = first_two_steps(training)
        losses += training.steps_with_loss(checked_steps - 3)
        before_last = perf_counter()
        losses += training.steps_with_loss(1)
        step_seconds = perf_counter() - before_last
        pipe.send({"losses": losses, "peak_bytes": peak, **training.facts()})
        if training.device.type == "cuda":
            torch.cuda.empty_cache()
        while (seconds := pipe.recv()) is not None:
            turn = take_turn(training, max(1, round(seconds / step_seconds)))
            pipe.send(turn)
        training.close()
    except Exception as error:
        lines = str(error).splitlines() or [""]
        pipe.send(f"{type(error).__name__}: {lines[0]}")
    finally:
        pipe.close()
