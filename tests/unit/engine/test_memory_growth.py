"""A long run takes no more memory than a short one: nothing of a step outlives it."""

import gc
import sys
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import pytest
import torch

from paceline.engine import build_step
from paceline.engine.running import RunningLoss
from paceline.tasks._classification import Classification
from paceline.tasks.base import TaskOutput
from support.toys import built, tensors, toy_config

SAMPLES, BATCH = 80, 16
LOOKS = (600, 700, 800, 900, 1000)
"""Steps between which memory must not grow. Each ends an epoch, and is logged. Caches of torch fill up before."""
LEAKED_BLOCKS = 100
"""Of a leak of one object a step, from each look to the next."""


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


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Leave out what was there before, which each look would walk through."""
    gc.freeze()


class Held(NamedTuple):
    """Held by the process at the end of a step."""

    tensors: int
    tensor_bytes: int
    blocks: int
    """Of Python's allocator."""


class Run(NamedTuple):
    held: dict[int, Held]
    graphs: set[int]
    """Numbers of graphs that were alive at the ends of steps."""


def held() -> Held:
    gc.collect()
    # of just these types: what the compiler left of another test's model are tensors without memory
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    count = len(tensors)
    del tensors
    return Held(count, sum(storages.values()), sys.getallocatedblocks())


def run(log_every_n_steps: int) -> Run:
    config = toy_config(
        task={"path": Watched},
        data={"path": lambda: tensors(SAMPLES), "global_batch_size": BATCH},
        trainer={"max_steps": LOOKS[-1], "log_every_n_steps": log_every_n_steps, "evaluate_every_n_epochs": 10},
    )
    seen = Run({}, set())
    Watched.graphs.clear()
    trainer = built(config)
    trainer.reporter.metrics = lambda step, values: None  # it would keep them
    after_step = trainer.after_step

    def watched_end() -> bool:
        seen.graphs.add(len(Watched.graphs))
        stop: bool = after_step()
        if trainer.state.position.step in LOOKS:
            seen.held[trainer.state.position.step] = held()
        return stop

    trainer.after_step = watched_end
    trainer.fit()
    return seen


def least_growth(seen: Run) -> int:
    """Python's blocks from one look to the next. Its caches fill up, mostly at first; a leak never slows down."""
    return min(seen.held[late].blocks - seen.held[early].blocks for early, late in pairwise(LOOKS))


@pytest.mark.parametrize("log_every_n_steps", [1, 10])
def test_nothing_grows_with_the_steps(log_every_n_steps: int) -> None:
    seen = run(log_every_n_steps)
    assert seen.graphs == {0}
    assert len({held[:2] for held in seen.held.values()}) == 1
    assert least_growth(seen) < 0.8 * LEAKED_BLOCKS


class Leaking(RunningLoss):
    """Keeps each step's graph until it is read, and each loss for ever."""

    kept: ClassVar[list[Any]] = []

    def add(self, output: TaskOutput) -> None:
        self._losses.append(output.loss_sum)
        self._weights.append(output.weight)
        self.kept.append(output.loss_sum.detach())


def test_growth_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_step, "RunningLoss", Leaking)
    seen = run(10)
    Leaking.kept.clear()
    first, last = seen.held[LOOKS[0]], seen.held[LOOKS[-1]]
    assert max(seen.graphs) == 10
    assert last.tensors - first.tensors == LOOKS[-1] - LOOKS[0]
    assert last.tensor_bytes > first.tensor_bytes
    assert least_growth(seen) >= LEAKED_BLOCKS
