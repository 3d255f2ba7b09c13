"""The settings of a process that torch, numpy and Python themselves keep, each with how to read and to set it."""

import gc
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import is_multithreading_enabled
from torch.autograd.grad_mode import set_multithreading_enabled
from torch.backends import cuda, cudnn, mkldnn

from paceline._compat.torch import (
    fp32_precision,
    global_backward_hooks_are_full,
    global_hooks,
    set_fp32_precision,
    set_global_backward_hooks_are_full,
)


class Flag(NamedTuple):
    """One setting."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


HOOKS: list[dict[Any, Any]] = global_hooks()
"""Hooks on all modules and on all optimizers."""

HALVES = ("fp16", "bf16")
_OPERATIONS = [(backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "conv", "rnn", "matmul")]
FP32_PRECISIONS = [("generic", "all"), *_OPERATIONS]


def _attributes(prefix: str, owner: Any, *names: str) -> Iterable[Flag]:
    return (Flag(f"{prefix}.{name}", partial(getattr, owner, name), partial(setattr, owner, name)) for name in names)


def _older(name: str, read: Callable[[], Any], write: Callable[[Any], Any]) -> Flag:
    """One that raises when it is read, where newer flags have been set such that there is no one answer."""

    def read_if_one() -> Any:
        try:
            return read()
        except RuntimeError:
            return None

    return Flag(name, read_if_one, lambda value: None if value is None else write(value))


def _fp32_precision(backend: str, op: str) -> Flag:
    name = f"{backend}.{op}.fp32_precision"
    return Flag(name, partial(fp32_precision, backend, op), partial(set_fp32_precision, backend, op))


def _autocast(device: str) -> Iterable[Flag]:
    yield Flag(
        f"autocast {device}", partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
    )
    dtype = partial(torch.get_autocast_dtype, device)
    yield Flag(f"autocast dtype {device}", dtype, partial(torch.set_autocast_dtype, device))


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(values: tuple[bool, bool]) -> None:
    mode, warn_only = values
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(values: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*values)


def _flushes_denormal() -> bool:
    return sys.float_info.min * float("0.5") == 0.0  # torch has no way to ask


FLAGS: list[Flag] = [
    Flag("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Flag("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Flag("anomaly mode", _anomaly, _set_anomaly),
    Flag("deterministic algorithms", _deterministic, _set_deterministic),
    Flag("flush denormal", _flushes_denormal, torch.set_flush_denormal),
    Flag("threads", torch.get_num_threads, torch.set_num_threads),
    _older("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *(_older(*flag) for flag in _attributes("cudnn", cudnn, "allow_tf32")),
    *(_fp32_precision(backend, op) for backend, op in FP32_PRECISIONS),
    *_autocast("cpu"),
    *_autocast("cuda"),
    Flag("autocast cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *_attributes("cudnn", cudnn, "enabled", "benchmark", "benchmark_limit", "deterministic"),
    *_attributes("mkldnn", mkldnn, "enabled", "deterministic"),
    *_attributes("cuda.matmul", cuda.matmul, *(f"allow_{each}_reduced_precision_reduction" for each in HALVES)),
    Flag("flash attention", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    Flag("memory efficient attention", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    Flag("plain attention", cuda.math_sdp_enabled, cuda.enable_math_sdp),
    Flag("cudnn attention", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    Flag("full backward hooks", global_backward_hooks_are_full, set_global_backward_hooks_are_full),
    *_attributes("deterministic", torch.utils.deterministic, "fill_uninitialized_memory"),
    Flag("backward threads", is_multithreading_enabled, set_multithreading_enabled),
    Flag("numpy's errors", np.geterr, lambda kinds: np.seterr(**kinds)),
    Flag("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Flag("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Flag("garbage collection's thresholds", gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
]
"""In the order in which they are put back: one may change those after it."""
