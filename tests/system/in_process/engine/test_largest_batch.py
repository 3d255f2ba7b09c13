"""The largest micro batch that fits: which sizes are tried, what counts as too large, and that nothing stays behind."""

import gc
import random
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.config.batch_sizes import OpenBatchSizes
from paceline.engine import free_memory, largest_batch
from paceline.engine.build_task import settle_sizes
from paceline.engine.dist_context import DistContext
from paceline.engine.free_memory import HostMemory, available_bytes, below_cgroup_limits
from paceline.engine.largest_batch import START, largest_that_fits, usable_sizes
from paceline.engine.reporter import MemoryReporter
from paceline.engine.trial_steps import _copies_of_gradients, is_out_of_memory, ran_out
from paceline.errors import PacelineError
from support.refusals import refused
from support.toys import fit, net, net_with_dropout_and_norm, points, toy_config

CPU = torch.device("cpu")
MAX = {"data__micro_batch_size": "max"}


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_frozen() -> None:
    """What others have frozen keeps the search from freezing what is there, which it would walk through each time."""
    gc.unfreeze()


# Which sizes


@pytest.mark.parametrize("share", [1, 2, 3, 10, 37, 111, 1000])
def test_the_found_size_makes_as_few_passes_as_the_limit_allows(share: int) -> None:
    assert len(usable_sizes(2**31 - 1)) < 100_000
    assert search(share, 0) == (None, sorted({1, min(2, share)}, reverse=True))
    for limit in range(1, share + 1, 1 + share // 50):
        found, asked = search(share, limit)
        assert found is not None
        sizes = OpenBatchSizes(share, 1).settled(found)
        assert sizes == OpenBatchSizes(share, 1).settled(limit)
        parts = torch.split(torch.arange(share), sizes.micro_batch_size)
        assert len(parts) == sizes.gradient_accumulation_steps == -(-share // limit)
        assert max(map(len, parts)) <= limit
        assert asked[0] == min(START, share)
        assert len(set(asked)) == len(asked) <= 2 * share.bit_length()
        assert max(asked) <= max(START, 2 * limit)


def search(share: int, limit: int) -> tuple[int | None, list[int]]:
    """The size that is found when `limit` samples fit, and the sizes that were tried."""
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    return largest_that_fits(usable_sizes(share), fits), tried


# What counts as too large


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_memory(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_memory_of_a_failed_trial_is_released() -> None:
    kept: list[weakref.ref[nn.Module]] = []

    def inner(thing: nn.Module) -> None:
        try:
            raise LookupError(thing)
        except LookupError:
            raise torch.OutOfMemoryError("CUDA out of memory") from None

    def body() -> None:
        thing = nn.Module()
        thing.itself = [thing]  # type: ignore[worker_spec]
        kept.append(weakref.ref(thing))
        inner(thing)

    gc.disable()
    try:
        assert ran_out(body, CPU)
    finally:
        gc.enable()
    assert kept[0]() is None


# How much memory there is


def memory_with(limit: int, taken: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> HostMemory:
    monkeypatch.setattr(free_memory, "available_bytes", lambda sharers: round(limit / (1 - free_memory.MARGIN)))
    memory = HostMemory(1)
    for size, peak in taken.items():
        before = memory._before
        monkeypatch.setattr(free_memory, "peak_memory_bytes", lambda device, peak=peak, before=before: before + peak)
        memory.end(size, 0)
    return memory


def test_a_size_is_tried_only_when_the_two_before_say_that_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_with(1000, {2: 120, 4: 140, 8: 180}, monkeypatch)
    assert [size for size in (16, 64, 89, 91, 128) if memory.expects(size)] == [16, 64, 89]
    assert memory_with(1000, {2: 900}, monkeypatch).expects(4)
    assert not memory_with(1000, {2: 900, 4: 990}, monkeypatch).expects(8)
    measured = memory_with(1000, {2: 100, 4: 1001}, monkeypatch)
    assert (measured.holds(2), measured.holds(4)) == (True, False)


def test_ranks_of_one_machine_share_its_memory() -> None:
    assert HostMemory(4)._limit == pytest.approx(HostMemory(1)._limit / 4, rel=0.1)
    assert 0 < available_bytes(1) < 2**50


V2 = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 200\n"}
V1 = {"memory.limit_in_bytes": "900", "memory.usage_in_bytes": "800", "memory.stat": "total_inactive_file 50\n"}


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/job/task\n", {"job/task": V2}, [500]),
        ("0::/job/task\n", {"job/task": {**V2, "memory.max": "max"}, "job": {**V2, "memory.max": "750"}}, [250]),
        ("0::/a/path/of/the/host\n", {"": V2}, [500]),
        ("3:cpuset:/\n4:cpu,memory:/box\n0::/\n", {"memory/box": V1}, [150]),
        ("0::/\n", {}, []),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, cgroup: str, files: dict[str, dict[str, str]], expected: list[int]
) -> None:
    (tmp_path / "process").mkdir()
    (tmp_path / "process" / "cgroup").write_text(cgroup)
    for folder, contents in files.items():
        place = tmp_path / "groups" / folder
        place.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (place / name).write_text(text)
    assert list(below_cgroup_limits(tmp_path / "groups", tmp_path / "process")) == expected


@pytest.mark.parametrize(
    ("hook", "workers", "copies"),
    [("none", 1, 0), ("powersgd", 1, 0), ("none", 2, 1), ("bf16", 2, 2), ("powersgd", 2, 3)],
)
def test_copies_of_the_gradients_that_an_exchange_takes(hook: str, workers: int, copies: int) -> None:
    config = toy_config(parallel__comm_hook=hook, scaling__num_workers=workers)
    assert _copies_of_gradients(config, DistContext(0, workers, CPU)) == copies


# Training


class Narrow(nn.Module):
    """A net that has no memory for more than some samples in training, and draws random numbers when it is built."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.net = net_with_dropout_and_norm()
        self.scale = nn.Parameter(torch.tensor(1.0))
        random.random()
        np.random.rand()

    def forward(self, features: torch.Tensor) -> Any:
        if self.training and len(features) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.net(features) * self.scale


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer__activation_checkpointing": "full", "optimizer": {"name": "adamw", "lr": 0.01}},
        {"trainer__precision": "bf16-mixed", "trainer__max_grad_norm": 0.1, "trainer__zero_grad": "zero"},
    ],
)
def test_training_is_that_with_the_found_size_written_down(changes: dict[str, Any]) -> None:
    common = {"model__path": lambda: Narrow(37), "data__path": lambda: points(103, 31, noisy=True), **changes}
    found, _, told = fit(toy_config(**common, data__global_batch_size=48, **MAX))
    written, _, expected = fit(toy_config(**common, data__global_batch_size=48, data__micro_batch_size=24))
    assert (found.data.order.micro_batch_size, written.data.order.micro_batch_size) == (24, 24)
    (batch,) = [details for kind, details in told.events if kind == "batch"]
    assert (batch["micro_batch_size"], batch["gradient_accumulation_steps"]) == (24, 2)
    assert told.values("train/loss") == expected.values("train/loss")
    assert told.values("val/loss") == expected.values("val/loss")
    ours, theirs = found.state.tensors(), written.state.tensors()
    for name in theirs:
        for key in theirs[name]:
            assert torch.equal(ours[name][key], theirs[name][key])
    assert found.state.task.seen == written.state.task.seen


def test_the_search_leaves_the_generators_alone() -> None:
    config = toy_config(model__path=lambda: Narrow(9), data__path=lambda: points(103, noisy=True), **MAX)

    def drawn(search: bool) -> list[Any]:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        if search:
            settle_sizes(config, DistContext.current(), MemoryReporter(), None)
        return [torch.rand(()).item(), random.random(), np.random.rand()]

    assert drawn(search=True) == drawn(search=False)


def test_no_trial_model_is_left() -> None:
    built: list[weakref.ref[nn.Module]] = []

    def build() -> nn.Module:
        model = Narrow(5)
        built.append(weakref.ref(model))
        return model

    trainer, _, _ = fit(toy_config(model__path=build, **MAX, trainer__epochs=1))
    assert len(built) > 3
    assert sum(model() is not None for model in built) == 1
    assert trainer.data.order.micro_batch_size == 4  # 16 in as few as limit 5 allows
    assert sorted(sum(trainer.state.task.seen, [])) == list(range(96))


def test_a_model_that_the_user_builds_only_once_is_not_touched() -> None:
    def losses(micro: int | str) -> list[float]:
        torch.manual_seed(3)
        backbone = net()  # the same each time, below a head that is new
        config = toy_config(
            model__path=lambda: nn.Sequential(backbone, nn.Linear(3, 3)),
            data__micro_batch_size=micro,
            trainer__epochs=1,
            optimizer__weight_decay=0.1,
        )
        return fit(config)[2].values("train/loss")

    assert losses("max") == losses(16)


def test_trial_steps_may_need_more_samples_than_there_are() -> None:
    trainer, _, _ = fit(toy_config(data__path=lambda: points(5), **MAX, trainer__epochs=1))
    assert trainer.data.order.micro_batch_size == 16


def broken() -> nn.Module:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("changes", "code", "fields"),
    [
        ({"model__path": lambda: Narrow(0)}, "no-batch-fits", {"failed": 1, "workers": 1}),
        ({"data__path": lambda: points(0)}, "too-few-samples", {"samples": 0}),
        ({"model__path": lambda: nn.Sequential(net(), nn.SyncBatchNorm(3))}, "synchronised-model", {}),
    ],
)
def test_a_search_that_cannot_succeed_is_refused(
    changes: dict[str, Any], code: str, fields: dict[str, int], golden: Any
) -> None:
    refusal = refused(PacelineError, fit, toy_config(**changes, **MAX))
    assert refusal.code == code
    assert refusal.fields.items() >= fields.items()
    if code != "too-few-samples":  # which names a lambda
        golden(str(refusal))
    with pytest.raises(ZeroDivisionError):  # other errors of a trial are the user's
        fit(toy_config(model__path=broken, **MAX))


@dataclass
class Scripted:
    """Memory that fits up to a limit, and notes what was tried."""

    limit: int
    tried: list[int] = field(default_factory=list)

    def expects(self, size: int) -> bool:
        return True

    def begin(self) -> None: ...

    def end(self, size: int, extra: int) -> None:
        self.tried.append(size)

    def holds(self, size: int) -> bool:
        return size <= self.limit


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    memory = Scripted(9)
    monkeypatch.setattr(largest_batch, "memory_of", lambda ranks: memory)
    return memory


def test_a_resumed_run_keeps_the_size(tmp_path: Path, scripted: Scripted) -> None:
    config = toy_config(**MAX)
    first, _, _ = fit(config, checkpoints=tmp_path)
    assert first.data.order.micro_batch_size == 8
    scripted.limit, scripted.tried = 3, []
    again, _, told = fit(config.with_overrides({"trainer.epochs": 3}), checkpoints=tmp_path)
    assert (again.data.order.micro_batch_size, scripted.tried) == (8, [])
    assert "batch" in [kind for kind, _ in told.events]


@pytest.mark.parametrize(
    "changed",
    [
        {"trainer__precision": "bf16-mixed"},
        {"data__cache": "memory"},
        {"parallel__comm_hook": "bf16"},
        {"data__micro_batch_size": 16},  # the first run had a number
    ],
)
def test_a_run_that_needs_other_memory_searches_again(
    tmp_path: Path, scripted: Scripted, changed: dict[str, Any]
) -> None:
    plain = {**MAX, "trainer__precision": "32-true"}
    first, second = (
        ({**plain, **changed}, plain) if "data__micro_batch_size" in changed else (plain, {**plain, **changed})
    )
    fit(toy_config(**first), checkpoints=tmp_path)
    scripted.limit = 4
    again, _, _ = fit(toy_config(**second, trainer__epochs=3), checkpoints=tmp_path)
    assert again.data.order.micro_batch_size == 4
