"""Changes of a trial to its process are put back."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from paceline.engine.fresh import ProcessState
from paceline.engine.global_flags import FLAGS
from paceline.engine.meter import peak_memory_bytes
from paceline.engine.prepare import apply_process_settings
from support.toys import toy_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Each `ProcessState` collects garbage: leave out what is there before, which takes it half a second."""
    gc.freeze()


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


def test_settings_of_a_config_are_applied_and_withdrawn() -> None:
    changed = {"float32_matmul_precision": "high", "cudnn_allow_tf32": False, "deterministic": True}
    seen = []
    for trainer in (changed, {}):
        apply_process_settings(toy_config(trainer=trainer).trainer, torch.device("cpu"))
        deterministic = torch.are_deterministic_algorithms_enabled()
        seen.append((torch.get_float32_matmul_precision(), deterministic, torch.backends.cudnn.allow_tf32))
    assert seen == [("high", True, False), ("highest", False, True)]


def test_random_numbers_continue_where_they_were() -> None:
    def drawn() -> tuple[Any, ...]:
        return torch.rand(2).tolist(), np.random.rand(), random.random()

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


def test_hooks_default_device_and_compiler_are_put_back() -> None:
    import torch._dynamo
    import torch._functorch.config

    state = ProcessState()
    calls: list[Any] = []
    nn.modules.module.register_module_forward_hook(lambda *about: calls.append(about))
    register_optimizer_step_post_hook(lambda *about: calls.append(about))
    torch.set_default_device("meta")
    torch._dynamo.config.suppress_errors = True
    torch._functorch.config.activation_memory_budget = 0.5
    state.restore()
    weight = nn.Parameter(torch.ones(1))
    assert weight.device.type == "cpu"
    nn.Identity()(weight)
    torch.optim.SGD([weight]).step()
    assert calls == []
    assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None
    assert not torch._dynamo.config.suppress_errors
    assert torch._functorch.config.activation_memory_budget == 1.0


def test_memory_and_its_peak_are_a_trials_own() -> None:
    state = ProcessState()
    state.restore()
    before = peak_memory_bytes(CPU)
    block = bytearray(200 << 20)
    cycle: list[Any] = [torch.ones(7, 11)]
    cycle.append(cycle)
    assert peak_memory_bytes(CPU) - before > 150 << 20
    del block, cycle
    state.restore()
    assert peak_memory_bytes(CPU) - before < 50 << 20
    assert not [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (7, 11)]


def test_without_proc_the_peak_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = peak_memory_bytes(CPU)
    (tmp_path / "empty").write_text("Name: x\n")
    for name in ("none", "empty"):
        monkeypatch.setattr("paceline.engine.meter.STATUS", tmp_path / name)
        assert peak_memory_bytes(CPU) >= expected * 0.9
