"""The largest micro batch that fits: which sizes are tried, what counts as too large, and that nothing stays behind."""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.config.batch_sizes import OpenBatchSizes
from paceline.engine import free_memory, largest_batch
from paceline.engine.free_memory import HostMemory, available_bytes, below_cgroup_limits
from paceline.engine.largest_batch import START, largest_that_fits, usable_sizes
from paceline.engine.ranks import Ranks
from paceline.engine.trial_steps import _copies_of_gradients, is_out_of_memory, ran_out
from paceline.errors import TrainingError, UnusableCode
from support.toys import Points, PointsTask, fit, net, net_with_dropout_and_norm, points, toy_config

CPU = torch.device("cpu")


# Which sizes


@pytest.mark.parametrize("share", [1, 2, 3, 7, 12, 97, 128, 1000])
def test_sizes_worth_trying_are_those_that_save_a_pass(share: int) -> None:
    assert usable_sizes(share) == sorted({-(-share // passes) for passes in range(1, share + 1)})


def test_few_sizes_are_worth_trying() -> None:
    assert len(usable_sizes(2**31 - 1)) < 100_000


@pytest.mark.parametrize("share", [1, 2, 3, 10, 37, 48, 111, 1000])
def test_the_found_size_makes_as_few_passes_as_the_limit_allows(share: int) -> None:
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
    """What is found when `limit` samples fit, and the sizes that were tried."""
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    return largest_that_fits(usable_sizes(share), fits), tried


def test_no_size_fits() -> None:
    assert search(100, 0) == (None, [2, 1])


# What counts as too large


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
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


def test_what_a_real_allocation_raises() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)


class Kept:
    """Something that a failed trial holds."""


def test_what_a_failed_trial_held_is_released() -> None:
    kept: list[weakref.ref[Kept]] = []

    def inner(thing: Kept) -> None:
        try:
            raise LookupError(thing)
        except LookupError:
            raise torch.OutOfMemoryError("CUDA out of memory") from None

    def body() -> None:
        thing = Kept()
        thing.itself = thing  # type: ignore[attr-defined]
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


def test_what_was_measured_counts_whatever_was_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_with(1000, {2: 100, 4: 1001}, monkeypatch)
    assert memory.holds(2)
    assert not memory.holds(4)


def test_ranks_of_one_machine_share_its_memory() -> None:
    assert HostMemory(4)._limit == pytest.approx(HostMemory(1)._limit / 4, rel=0.1)


def test_measured_memory_grows_with_the_size() -> None:
    memory = HostMemory(1)
    for size in (48, 96):  # so large that they are not put where something else was before
        memory.begin()
        tensor = torch.ones(size << 18)  # MiB
        memory.end(size, 0)
        del tensor
    assert memory._taken[96] - memory._taken[48] == pytest.approx(48 << 20, rel=0.3)


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


def test_there_is_memory_here() -> None:
    assert 0 < available_bytes(1) < 2**50


# Training


class Narrow(nn.Module):
    """A net that has no memory for more than some samples in training, and draws random numbers when it is built."""

    limit = 37

    def __init__(self) -> None:
        super().__init__()
        self.net = net_with_dropout_and_norm()
        self.scale = nn.Parameter(torch.tensor(1.0))
        random.random()
        np.random.rand()

    def forward(self, features: torch.Tensor) -> Any:
        if self.training and len(features) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.net(features) * self.scale


def narrow(limit: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Narrow()
        model.limit = limit
        return model

    return build


def train_pair(**changes: Any) -> tuple[Any, Any, Any, Any]:
    """A run with `max` under a limit of 37 samples, and one with what it must find written down."""
    common = {"model__path": narrow(37), "data__path": lambda: points(103, 31, noisy=True), **changes}
    found = fit(toy_config(**common, data__global_batch_size=48, data__micro_batch_size="max"))
    written = fit(toy_config(**common, data__global_batch_size=48, data__micro_batch_size=24))
    return found[0], found[2], written[0], written[2]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer__activation_checkpointing": "full", "optimizer": {"name": "adamw", "lr": 0.01}},
        {"trainer__precision": "bf16-mixed", "trainer__max_grad_norm": 0.1, "trainer__zero_grad": "zero"},
    ],
)
def test_training_is_that_with_the_found_size_written_down(changes: dict[str, Any]) -> None:
    found, told, written, told_then = train_pair(**changes)
    assert (found.order.micro_batch_size, written.order.micro_batch_size) == (24, 24)
    assert told.values("train/loss") == told_then.values("train/loss")
    assert told.values("val/loss") == told_then.values("val/loss")
    ours, theirs = found.state.tensors(), written.state.tensors()
    for name in theirs:
        for key in theirs[name]:
            assert torch.equal(ours[name][key], theirs[name][key])
    assert found.state.task.seen == written.state.task.seen


def test_the_user_is_told_what_was_found() -> None:
    _, told, _, _ = train_pair()
    assert ("batch", 24, 2) in [
        (kind, details.get("micro_batch_size"), details.get("gradient_accumulation_steps"))
        for kind, details in told.events
    ]


def test_the_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    config = toy_config(model__path=narrow(9), data__path=lambda: points(103, noisy=True), data__micro_batch_size="max")

    def drawn(search: bool) -> list[Any]:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        if search:
            from paceline.engine.build import settle_sizes
            from paceline.engine.reporter import MemoryReporter

            settle_sizes(config, Ranks.current(), MemoryReporter(), None)
        return [torch.rand(()).item(), random.random(), np.random.rand()]

    assert drawn(search=True) == drawn(search=False)


@dataclass
class Watched:
    """Counts the models that are alive."""

    alive: list[weakref.ref[nn.Module]] = field(default_factory=list)

    def __call__(self) -> nn.Module:
        model = narrow(5)()
        self.alive.append(weakref.ref(model))
        return model

    def count(self) -> int:
        return sum(model() is not None for model in self.alive)


def test_no_trial_model_is_left() -> None:
    watched = Watched()
    trainer, _, _ = fit(toy_config(model__path=watched, data__micro_batch_size="max", trainer__epochs=1))
    assert len(watched.alive) > 3
    assert watched.count() == 1
    assert trainer.order.micro_batch_size == 4  # 16 in as few as limit 5 allows


def test_a_model_that_the_user_builds_only_once_is_not_touched() -> None:
    def losses(micro: int | str) -> list[float]:
        torch.manual_seed(3)
        backbone = net()  # the same each time, below a head that is new

        def build() -> nn.Module:
            return nn.Sequential(backbone, nn.Linear(3, 3))

        config = toy_config(
            model__path=build, data__micro_batch_size=micro, trainer__epochs=1, optimizer__weight_decay=0.1
        )
        _, _, reporter = fit(config)
        return reporter.values("train/loss")

    assert losses("max") == losses(16)


def test_one_sample_that_does_not_fit_is_told_with_cures() -> None:
    with pytest.raises(TrainingError, match=r"not even one sample fits.*activation_checkpointing.*bf16-mixed.*smaller"):
        fit(toy_config(model__path=narrow(0), data__micro_batch_size="max"))


def test_more_samples_a_trial_than_there_are() -> None:
    trainer, _, _ = fit(toy_config(data__path=lambda: points(5), data__micro_batch_size="max", trainer__epochs=1))
    assert trainer.order.micro_batch_size == 16


@pytest.mark.parametrize("samples", [0, 10])
def test_too_few_samples_are_told_before_any_trial(samples: int) -> None:
    changes = {"data__path": lambda: points(samples), "data__drop_last": True}
    with pytest.raises(TrainingError, match=f"{samples} training samples make no global batch of 16"):
        fit(toy_config(**changes, data__micro_batch_size="max"))


class Moody(Points):
    """Raises on one sample."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise ZeroDivisionError("sample 3 is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("hook", "workers", "copies"),
    [("none", 1, 0), ("powersgd", 1, 0), ("none", 2, 1), ("bf16", 2, 2), ("powersgd", 2, 3)],
)
def test_copies_of_the_gradients_that_an_exchange_takes(hook: str, workers: int, copies: int) -> None:
    config = toy_config(parallel__comm_hook=hook, scaling__num_workers=workers)
    assert _copies_of_gradients(config, Ranks(0, workers, CPU)) == copies


def test_other_errors_of_a_trial_are_the_users() -> None:
    with pytest.raises(ZeroDivisionError, match="sample 3 is broken"):
        fit(toy_config(data__path=lambda: (Moody(96), Points(4)), data__micro_batch_size="max"))


def test_a_model_that_communicates_in_its_forward_is_refused() -> None:
    config = toy_config(model__path=lambda: nn.Sequential(net(), nn.SyncBatchNorm(3)), data__micro_batch_size="max")
    with pytest.raises(UnusableCode, match="SyncBatchNorm"):
        fit(config)


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
    config = toy_config(data__micro_batch_size="max")
    first, _, _ = fit(config, checkpoints=tmp_path)
    assert first.order.micro_batch_size == 8
    scripted.limit, scripted.tried = 3, []
    again, _, told = fit(config.with_overrides({"trainer.epochs": 3}), checkpoints=tmp_path)
    assert (again.order.micro_batch_size, scripted.tried) == (8, [])
    assert "batch" in [kind for kind, _ in told.events]


@pytest.mark.parametrize(
    "changed",
    [
        {"trainer__precision": "bf16-mixed"},
        {"trainer__memory_format": "channels_last"},
        {"trainer__zero_grad": "zero"},
        {"data__cache": "memory"},
        {"parallel__comm_hook": "bf16"},
    ],
)
def test_a_branched_off_run_that_needs_other_memory_searches_anew(
    tmp_path: Path, scripted: Scripted, changed: dict[str, Any]
) -> None:
    fit(toy_config(data__micro_batch_size="max", trainer__precision="32-true"), checkpoints=tmp_path)
    scripted.limit = 4
    changes = {"trainer__precision": "32-true", "trainer__epochs": 3, **changed}
    again, _, _ = fit(toy_config(data__micro_batch_size="max", **changes), checkpoints=tmp_path)
    assert again.order.micro_batch_size == 4


def test_a_run_that_had_a_number_searches(tmp_path: Path, scripted: Scripted) -> None:
    fit(toy_config(data__micro_batch_size=16), checkpoints=tmp_path)
    again, _, _ = fit(toy_config(data__micro_batch_size="max", trainer__epochs=3), checkpoints=tmp_path)
    assert again.order.micro_batch_size == 8


def test_task_of_the_toys_sees_no_trial_sample() -> None:
    trainer, _, _ = fit(toy_config(data__micro_batch_size="max", trainer__epochs=1))
    task = trainer.state.task
    assert isinstance(task, PointsTask)
    assert sorted(sum(task.seen, [])) == list(range(96))
