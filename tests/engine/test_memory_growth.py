"""A long run takes no more memory than a short one: nothing of a step outlives it."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import pytest
import torch

from paceline.data._tensors import TensorData
from paceline.engine import trainer as trainer_module
from paceline.engine.build import build_trainer
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.engine.running import RunningLoss
from paceline.tasks._classification import Classification
from paceline.tasks.base import TaskOutput
from support.toys import CLASSES, FEATURES, toy_config

SAMPLES, BATCH = 80, 16
EARLY, LATE = 200, 1000
"""Steps between which memory must not grow. Both end an epoch, and are logged."""
SPARE_BLOCKS = 200
"""Objects that Python's own caches may come to hold meanwhile; a leak of one a step would be 800."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads than free cores make a thousand tiny steps take a minute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Token:
    """Lives as long as the graph that it hangs on."""


class Watched(Classification):
    """Hangs a token on each training step's graph."""

    graphs: ClassVar["WeakSet[Token]"] = WeakSet()

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        if self.training:
            token = Token()
            self.graphs.add(token)
            output.loss_sum.grad_fn.metadata["token"] = token
        return output


class Silent(MemoryReporter):
    """Keeps nothing."""

    def metrics(self, step: int, values: Any) -> None:
        pass


class Held(NamedTuple):
    """What the process holds at the end of a step."""

    tensors: int
    tensor_bytes: int
    blocks: int
    """Of Python's allocator."""


class Run(NamedTuple):
    """What was seen of a run."""

    held: dict[int, Held]
    graphs: set[int]
    """Numbers of graphs that were alive at the ends of steps."""
    saved_bytes: set[int]
    """Bytes that steps saved for backward."""


def samples() -> tuple[TensorData, TensorData]:
    generator = torch.Generator().manual_seed(0)
    data = TensorData(torch.randn(SAMPLES, FEATURES, generator=generator), torch.arange(SAMPLES) % CLASSES)
    return data, data


def held() -> Held:
    gc.collect()
    # of just these types: what the compiler left of another test's model are tensors without memory
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    count = len(tensors)
    del tensors
    return Held(count, sum(storages.values()), sys.getallocatedblocks())


def run(steps: int, look_at: tuple[int, ...], log_every_n_steps: int) -> Run:
    config = toy_config(
        task={"path": Watched},
        data={"path": samples, "global_batch_size": BATCH},
        trainer={"max_steps": steps, "log_every_n_steps": log_every_n_steps, "evaluate_every_n_epochs": 20},
    )
    seen = Run({}, set(), set())
    Watched.graphs.clear()
    trainer = build_trainer(config, Ranks.current(), Silent())
    after_step, train_step = trainer.after_step, trainer.train_step

    def watched_step(batches: Any) -> int:
        with saved_bytes(seen.saved_bytes.add):
            return train_step(batches)

    def watched_end() -> bool:
        seen.graphs.add(len(Watched.graphs))
        stop = after_step()
        if trainer.state.position.step in look_at:
            seen.held[trainer.state.position.step] = held()
        return stop

    trainer.train_step, trainer.after_step = watched_step, watched_end  # type: ignore[method-assign]
    trainer.fit()
    return seen


@contextmanager
def saved_bytes(tell: Callable[[int], None]) -> Iterator[None]:
    """Tell how many bytes the body saves for backward."""
    total = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    tell(total)


@pytest.mark.parametrize("log_every_n_steps", [1, 10])
def test_nothing_grows_with_the_steps(log_every_n_steps: int) -> None:
    seen = run(LATE, (EARLY, LATE), log_every_n_steps)
    early, late = seen.held[EARLY], seen.held[LATE]
    assert seen.graphs == {0}
    assert len(seen.saved_bytes) == 1
    assert min(seen.saved_bytes) > 0
    assert late.tensors == early.tensors
    assert late.tensor_bytes == early.tensor_bytes
    assert late.blocks - early.blocks < SPARE_BLOCKS


class KeepsGraphs(RunningLoss):
    """The planted bug: it does not detach."""

    def add(self, output: TaskOutput) -> None:
        self._step.append((output.loss_sum, output.weight))


class KeepsLosses(RunningLoss):
    """Another one: it remembers what it has read."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.history: list[torch.Tensor] = []

    def add(self, output: TaskOutput) -> None:
        super().add(output)
        self.history.append(output.loss_sum.detach())


class KeepsNumbers(RunningLoss):
    """A small one: one number a reading."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.history: list[float] = []

    def read_with(self, beside: Any) -> tuple[float, list[float]]:
        loss, sums = super().read_with(beside)
        self.history.append(loss)
        return loss, sums


@pytest.mark.parametrize("log_every_n_steps", [1, 10])
def test_a_kept_graph_would_be_seen(log_every_n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "RunningLoss", KeepsGraphs)
    assert max(run(40, (), log_every_n_steps).graphs) == log_every_n_steps


def test_kept_losses_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "RunningLoss", KeepsLosses)
    seen = run(60, (20, 60), 10)
    assert seen.held[60].tensors - seen.held[20].tensors == 40
    assert seen.held[60].tensor_bytes > seen.held[20].tensor_bytes


def test_kept_numbers_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "RunningLoss", KeepsNumbers)
    seen = run(500, (100, 500), 1)
    assert seen.held[500].blocks - seen.held[100].blocks > SPARE_BLOCKS
