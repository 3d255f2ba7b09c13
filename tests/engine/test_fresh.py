"""What a trial changes of its process is put back, and its process group is its own."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from paceline.engine.caching import cached
from paceline.engine.failure import describe, failing_together
from paceline.engine.fresh import ProcessState, end_process_groups, fresh_process_group
from paceline.engine.global_flags import FLAGS
from paceline.engine.loading import SeededFetcher
from paceline.engine.meter import peak_memory_bytes
from paceline.engine.outcome import Diverged
from paceline.engine.ranks import Ranks
from paceline.errors import EnvironmentFault
from support.ranks import run_ranks
from support.toys import Points


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Other tests in this process look at the garbage collector, too."""
    yield
    gc.unfreeze()


FLIPPED: dict[str, Callable[[], Any]] = {
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "matmul tf32": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "all precisions": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "half reductions": lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "cudnn tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "conv tf32": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "cudnn benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "cudnn": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "mkldnn": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "grad mode": lambda: torch._C._set_grad_enabled(False),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True, False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "autocast cache": lambda: torch.set_autocast_cache_enabled(False),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "denormals": lambda: torch.set_flush_denormal(True),
    "numpy's errors": lambda: np.seterr(all="raise"),
    "recursion": lambda: sys.setrecursionlimit(1234),
    "garbage": gc.disable,
    "thresholds": lambda: gc.set_threshold(5, 5, 5),
}


def flags() -> dict[str, Any]:
    return {flag.name: flag.read() for flag in FLAGS}


@pytest.mark.parametrize("name", FLIPPED)
def test_flags_are_put_back(name: str) -> None:
    state, before = ProcessState(), flags()
    try:
        FLIPPED[name]()
        assert flags() != before, "nothing notices the change"
    finally:
        state.restore()
    assert flags() == before


def test_a_flag_that_was_set_before_is_set_again() -> None:
    plain = ProcessState()
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("high")
    state, before = ProcessState(), flags()
    try:
        plain.restore()
        assert flags() != before
        state.restore()
        assert flags() == before
    finally:
        plain.restore()


def drawn() -> tuple[Any, ...]:
    return torch.rand(2).tolist(), np.random.rand(), random.random()


def test_random_numbers_go_on_where_they_were() -> None:
    state = ProcessState()
    first = drawn()
    assert drawn() != first
    state.restore()
    assert drawn() == first


def test_environment_folder_filters_and_levels_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_A", "a")
    monkeypatch.setenv("PACELINE_B", "b")
    state = ProcessState()
    before = dict(os.environ), os.getcwd(), list(warnings.filters), logging.getLogger("paceline.x").level
    os.environ.update(PACELINE_A="other", PACELINE_C="c")
    del os.environ["PACELINE_B"]
    os.chdir(tmp_path)
    warnings.simplefilter("error")
    logging.getLogger("torch").setLevel(1)
    logging.getLogger().setLevel(1)
    state.restore()
    assert (dict(os.environ), os.getcwd(), list(warnings.filters), logging.getLogger("paceline.x").level) == before
    assert logging.getLogger("torch").level != 1
    assert logging.getLogger().level != 1


def test_a_folder_that_is_gone_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    state = ProcessState()
    os.chdir(tmp_path)
    (tmp_path / "gone").rmdir()
    state.restore()
    assert Path.cwd() == tmp_path


def test_hooks_and_default_device_are_put_back() -> None:
    state = ProcessState()
    calls: list[Any] = []
    nn.modules.module.register_module_forward_hook(lambda *about: calls.append(about))
    register_optimizer_step_post_hook(lambda *about: calls.append(about))
    torch.set_default_device("meta")
    state.restore()
    weight = nn.Parameter(torch.ones(1))
    assert weight.device.type == "cpu"
    nn.Identity()(weight)
    torch.optim.SGD([weight]).step()
    assert calls == []
    assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None


def test_the_compiler_is_as_for_a_trial_without(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo
    import torch._functorch.config

    state = ProcessState()
    torch._dynamo.config.suppress_errors = True
    torch._functorch.config.activation_memory_budget = 0.5
    state.restore()
    assert not torch._dynamo.config.suppress_errors
    assert torch._functorch.config.activation_memory_budget == 1.0


def test_the_peak_of_the_memory_is_a_trials_own() -> None:
    state = ProcessState()
    state.restore()
    before = peak_memory_bytes(torch.device("cpu"))
    block = bytearray(200 << 20)
    assert peak_memory_bytes(torch.device("cpu")) - before > 150 << 20
    del block
    state.restore()
    assert peak_memory_bytes(torch.device("cpu")) - before < 50 << 20


def test_without_proc_the_peak_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = peak_memory_bytes(torch.device("cpu"))
    monkeypatch.setattr("paceline.engine.meter.STATUS", tmp_path / "none")
    assert peak_memory_bytes(torch.device("cpu")) >= expected * 0.9
    (tmp_path / "empty").write_text("Name: x\n")
    monkeypatch.setattr("paceline.engine.meter.STATUS", tmp_path / "empty")
    assert peak_memory_bytes(torch.device("cpu")) >= expected * 0.9


def test_garbage_of_a_trial_is_collected() -> None:
    state = ProcessState()
    cycle: list[Any] = [torch.ones(7, 11)]
    cycle.append(cycle)
    del cycle
    state.restore()
    assert not [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (7, 11)]


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def grown(early: tuple[int, ...], late: tuple[int, ...]) -> bool:
    """One file more or less is a connection that rank 0's store has yet to close; a leak would be one a trial."""
    return late[0] > early[0] + 1 or late[1:] != early[1:]


def base_store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def renew(ranks: Ranks, times: int) -> tuple[list[Any], float]:
    store, state, seen = base_store(), ProcessState(), []
    start = time.perf_counter()
    for number in range(times):
        with fresh_process_group(store, f"trial/{number}", ranks.rank, ranks.world_size, "gloo", 20.0):
            group = torch.distributed.new_group()
            mine = Ranks.current()
            assert Ranks(mine.rank, 2, mine.device, group).sum_numbers([float(number)]) == [2.0 * number]
            del group
        assert not torch.distributed.is_initialized()
        state.restore()
        seen.append(held())
    return seen, (time.perf_counter() - start) / times


def test_process_groups_come_and_go() -> None:
    for seen, seconds in run_ranks(renew, 2, 30):
        assert not grown(seen[2], seen[-1])
        assert seconds < 1.0


def fail_in_turns(ranks: Ranks, times: int) -> tuple[list[str], list[Any]]:
    """Every other trial fails on one rank while the other stands in a collective operation."""
    from paceline.engine.failure import RankFailed

    store, state, told, seen = base_store(), ProcessState(), [], []

    def body(number: int, mine: Ranks) -> float:
        mine.sum(torch.ones(1))
        if number % 2 and ranks.rank == number // 2 % 2:
            raise Diverged(f"trial {number}") if number % 4 == 1 else torch.OutOfMemoryError("CUDA out of memory")
        return mine.sum_numbers([1.0])[0]

    def trial(number: int) -> str:
        with fresh_process_group(store, f"trial/{number}", ranks.rank, ranks.world_size, "gloo", 20.0):
            mine = Ranks.current()
            try:
                return str(failing_together(mine, lambda: body(number, mine)))
            except RankFailed as error:
                return f"{error.failure.kind}: {error.failure.reason}"

    for number in range(times):
        told.append(trial(number))
        state.restore()
        seen.append((*held(), threading.active_count()))
    return told, seen


def test_a_trial_that_failed_leaves_nothing_to_the_next() -> None:
    oom = "oom: OutOfMemoryError: CUDA out of memory"
    for told, seen in run_ranks(fail_in_turns, 2, 7):
        assert told == [
            "2.0", "diverged: trial 1", "2.0", oom, "2.0", "diverged: trial 5", "2.0",
        ]  # fmt: skip
        assert not grown(seen[2], seen[-1])


def raise_out_of_it(ranks: Ranks) -> bool:
    store = base_store()
    with pytest.raises(LookupError), fresh_process_group(store, "a", ranks.rank, 2, "gloo", 20.0):
        raise LookupError
    is_over = not torch.distributed.is_initialized()
    end_process_groups()  # there is none
    with fresh_process_group(store, "b", ranks.rank, 2, "gloo", 20.0):
        return is_over and Ranks.current().sum_numbers([1.0]) == [2.0]


def test_an_error_ends_the_group_too() -> None:
    assert run_ranks(raise_out_of_it, 2) == [True, True]


class Huge(Points):
    """Has more samples than any memory."""

    def __len__(self) -> int:
        return 1 << 50


def test_kinds_of_failures() -> None:
    def kind(error: BaseException) -> str:
        return describe(error, 0).kind

    assert kind(Diverged("the loss is nan")) == "diverged"
    assert kind(MemoryError()) == kind(torch.OutOfMemoryError("CUDA out of memory")) == "oom"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert kind(caught.value) == "oom"
    assert kind(RuntimeError("shapes differ")) == kind(SystemExit(1)) == kind(ValueError()) == "error"
    with pytest.raises(EnvironmentFault) as told:
        cached(SeededFetcher(Huge(1), 0), "memory", torch.device("cpu"))
    assert kind(told.value) == "oom"


def test_it_takes_little_time() -> None:
    state = ProcessState()
    state.restore()
    start = time.perf_counter()
    for _ in range(5):
        state.restore()
    assert (time.perf_counter() - start) / 5 < 0.3
