"""A training of Paceline's engine in a process of its own, which takes steps when it is told to."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
from harness import ArmFailed

from paceline.config.experiment import validate
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256

FORKS = multiprocessing.get_context("forkserver")
"""One server imports what is slow to import and computes nothing; each arm is a fork of it."""
WARM_UP_SHARE = 4
"""A turn begins with a quarter as many steps that are not timed: they fill the device's memory pool and use up what
loader processes have got ready meanwhile."""


class Turn(NamedTuple):
    """The timed steps of a turn."""

    seconds: float
    cpu_seconds: float
    """Of this process, without those of the loader's."""
    steps: int
    samples: int


class ArmProcess:
    """An arm that has been started, has made its first steps, and waits for its turns.

    Args:
        tree: the config, as plain values.
        checked_steps: how many first steps report their loss, at least 3."""

    def __init__(self, tree: dict[str, Any], device: str, threads: int, checked_steps: int) -> None:
        FORKS.set_forkserver_preload(["torch", "paceline.engine.build"])
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self._process = ProcessPoolExecutor(1, FORKS)
        try:
            self.facts: dict[str, Any] = self._ask(_start, tree, device, threads, checked_steps)
        except ArmFailed:
            self._process.shutdown()
            raise

    def take_turn(self, seconds: float) -> Turn:
        """Train for about so long."""
        turn: Turn = self._ask(_take_turn, max(1, round(seconds / self.facts["step_seconds"])))
        return turn

    def end(self) -> None:
        """End the process."""
        with suppress(ArmFailed):
            self._ask(_close)
        self._process.shutdown()

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._process.submit(function, *args).result()
        except Exception as error:
            raise ArmFailed(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


class _Training:
    def __init__(self, tree: dict[str, Any], device: str) -> None:
        self._device = torch.device(device)
        self._reporter = MemoryReporter()
        self._trainer = build_trainer(validate(tree), DistContext.current(self._device), self._reporter)
        self._trainer.state.task.train()
        self._batches = self._all_batches()

    def _all_batches(self) -> Iterator[Any]:
        for epoch in range(10**9):
            yield from self._trainer.data.loader.load(epoch, self._trainer.data.order.micro_batches(epoch, 0))

    def step(self) -> int:
        """One optimizer step; returns its samples."""
        samples: int = self._trainer.step(self._batches, self._trainer.state.position.step).samples
        self._trainer.state.position.advance(samples, epoch_is_over=False)
        return samples

    def loss(self) -> float:
        """The mean loss since the last reading. Waits for the device."""
        return float(self._trainer.step.running.read())

    def facts(self) -> dict[str, Any]:
        """Number of parameters, hash of the weights, warnings."""
        state = self._trainer.state
        return {
            "parameters": sum(parameter.numel() for parameter in state.task.parameters()),
            "weights_sha256": weights_sha256(state.model_tensors()),
            "warnings": [details["message"] for kind, details in self._reporter.events if kind == "warning"],
        }

    def take_turn(self, steps: int) -> Turn:
        """Warm up, and time some steps. Leaves no unused memory with the device's allocator, for the other arms."""
        wait = torch.cuda.synchronize if self._device.type == "cuda" else lambda: None
        for _ in range(-(-steps // WARM_UP_SHARE)):
            self.step()
        wait()
        start, cpu_start = perf_counter(), process_time()
        samples = sum(self.step() for _ in range(steps))
        wait()
        turn = Turn(perf_counter() - start, process_time() - cpu_start, steps, samples)
        self.loss()
        torch.cuda.empty_cache()  # nothing happens without CUDA
        return turn

    def close(self) -> None:
        self._trainer.close()


_training: _Training | None = None


def _start(tree: dict[str, Any], device: str, threads: int, checked_steps: int) -> dict[str, Any]:
    """Make the first steps; what is known then."""
    global _training
    multiprocessing.set_start_method(None, force=True)  # else loader processes would be made as this one was
    torch.set_num_threads(threads)
    _training = _Training(tree, device)
    losses = []
    for _ in range(checked_steps):
        began = perf_counter()
        _training.step()
        losses.append(_training.loss())
    step_seconds = perf_counter() - began
    torch.cuda.empty_cache()
    return {"losses": losses, "step_seconds": step_seconds, **_training.facts()}


def _take_turn(steps: int) -> Turn:
    assert _training is not None
    return _training.take_turn(steps)


def _close() -> None:
    if _training is not None:
        _training.close()
