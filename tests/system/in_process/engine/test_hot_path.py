"""The cost of a training step beside the computation: a few small operations, and no wait for the device."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from paceline._compat.torch import TorchDispatchMode
from paceline.engine import build
from paceline.engine.reporter import MemoryReporter
from support.adascale import ADASCALE
from support.precision import scaled
from support.toys import built, net, tensors, toy_config

LOG_EVERY = 4
STEPS = 24
READS_TO_LOG = 2
"""The losses; with clipping, also the gradient's norm, which counts as two calls."""
EXTRA_OPS = 8
"""Beside the bare loop's: the loss's factor in forward and backward, the running loss, the slices of the order."""
# the first step checks the task's output, and may wait
READS = {"item", "tolist", "numpy", "cpu", "nonzero", "__float__", "__int__", "__bool__", "__index__"}
"""Calls that wait for a GPU; the loop is on the CPU here, where `tolist` shows up in no operation."""


class Operations(TorchDispatchMode):
    """Counts the operations of each optimizer step; `end_step` starts the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Counter[str]] = []
        self.reads_of_steps: list[Counter[str]] = []
        self._now: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._now[str(func)] += 1
        if func is torch.ops.aten._local_scalar_dense.default:
            self.reads["_local_scalar_dense"] += 1
        return func(*args, **(kwargs or {}))

    def end_step(self) -> None:
        self.steps.append(self._now)
        self.reads_of_steps.append(self.reads)
        self._now, self.reads = Counter(), Counter()


class Reads(TorchFunctionMode):
    """Counts calls that read a tensor's values from Python."""

    def __init__(self, reads: Any) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            self.reads()[name] += 1
        return func(*args, **(kwargs or {}))


def config(**overrides: Any) -> Any:
    data = {"data__path": lambda: tensors(STEPS * 16)}
    return toy_config(**{"task": {"name": "classification"}, **data, **overrides})


def engine_operations(optimizer: Any = None, **overrides: Any) -> Operations:
    """Each step's operations, from the end of one to the end of the next, loading and logging included."""
    trainer_section = {"epochs": 2, "log_every_n_steps": LOG_EVERY, "evaluate_every_n_epochs": 0, **overrides}
    chosen = {"optimizer__fused": False} if optimizer is None else {"optimizer": optimizer}
    made = config(**chosen, trainer=trainer_section)
    trainer = built(made, reporter=MemoryReporter(stop_at_step=STEPS))
    after_step = trainer.after_step

    def counted() -> bool:
        stop: bool = after_step()
        operations.end_step()
        return stop

    trainer.after_step = counted
    with Operations() as operations, Reads(lambda: operations.reads):
        trainer.fit()
    assert len(operations.steps) == STEPS
    return operations


def bare_operations() -> list[Counter[str]]:
    """The textbook loop's, without reading the loss."""
    features, targets = tensors(STEPS * 16)[0].tensors
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Operations() as operations:
        for ids in torch.randperm(len(features)).split(16):
            optimizer.zero_grad()
            F.cross_entropy(model(features[ids]), targets[ids]).backward()
            optimizer.step()
            operations.end_step()
    return operations.steps


def test_a_step_adds_few_operations_to_the_bare_loop_and_never_more() -> None:
    # the first steps still make the momentum buffers and the epoch's order
    mine, bare = engine_operations().steps, bare_operations()[2]
    for step in mine[1:3]:
        extra = step.total() - bare.total()
        assert extra <= EXTRA_OPS, f"{extra} more: {step - bare}"
    totals = {number: step.total() for number, step in enumerate(mine[1:], 2)}
    assert len({total for number, total in totals.items() if number % LOG_EVERY}) == 1
    assert len({total for number, total in totals.items() if not number % LOG_EVERY}) <= 2  # the last one ends the run


@pytest.mark.parametrize("overrides", [{}, {"precision": "bf16-mixed"}, {"max_grad_norm": 1.0}])
def test_only_logging_waits_for_the_device(overrides: dict[str, Any]) -> None:
    for number, reads in enumerate(engine_operations(**overrides).reads_of_steps[1:], 2):
        if number % LOG_EVERY:
            assert not reads, f"step {number} reads {reads}"
        else:
            assert 0 < reads.total() <= READS_TO_LOG + 2 * ("max_grad_norm" in overrides)


OPTIMIZERS = ["lars", "lamb", "nvlamb", "novograd", "muon", "schedule_free_adamw"]


@pytest.mark.parametrize("limit", [None, 1.0])
@pytest.mark.parametrize(
    "optimizer", [{"name": "sgd", "fused": True}, *({"name": name} for name in OPTIMIZERS)], ids=str
)
def test_loss_scaling_waits_only_to_log(
    optimizer: dict[str, Any], limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "Precision", scaled("32-true"))  # fp16 has a scaler, on CUDA
    # the scaler itself waits for the device at each step, unless the optimizer skips steps without it
    operations = engine_operations(optimizer, max_grad_norm=limit)
    for number, reads in enumerate(operations.reads_of_steps[1:], 2):
        assert bool(reads) == (number % LOG_EVERY == 0), f"step {number} reads {reads}"


def test_adascale_reads_the_device_once_a_step() -> None:
    made = config(**ADASCALE, trainer__gradient_accumulation_steps=4)
    trainer = built(made)
    batches = iter(list(islice(trainer.data.loader.load(0, trainer.data.order.micro_batches(0, 0)), 8)))
    trainer.step(batches, 0)
    found: Counter[str] = Counter()
    with Reads(lambda: found):
        trainer.step(batches, 1)
    assert found == {"tolist": 1}
