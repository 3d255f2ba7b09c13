"""Trials that run one after the other in the same process, each as if it were the first.

What belongs to the process as a whole is noted before the first trial and put back after each. The process group of a
trial is its own, so that nothing of one that failed reaches the next.
"""

import ctypes
import gc
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # re-exported, though not by name

from paceline._compat.torch import abort_process_group, forget_sharding_caches
from paceline.config.sections import TrainerConfig
from paceline.engine.compilation import apply_compiler_settings
from paceline.engine.free_memory import forget_peak
from paceline.engine.global_flags import FLAGS, HOOKS
from paceline.engine.order import permutation

FAREWELL_SECONDS = 10.0
"""How long a rank that is done with a process group waits for the others to be done, too."""


class ProcessState:
    """What a trial may change of its process: note it before the first one, `restore` it after each.

    These are torch's flags, hooks and random generators, numpy's and Python's random generators, numpy's handling of
    errors, environment variables, the working directory, filters of warnings, levels of loggers, and limits of Python.
    What code keeps in its own modules is not known here, and stays.

    All objects that there are before are left out of garbage collection from then on, which else takes longer than all
    the rest together.
    """

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        self._flags = [(flag, flag.read()) for flag in FLAGS]
        self._hooks = [(hooks, dict(hooks)) for hooks in HOOKS]
        self._notes = [(put_back, note()) for note, put_back in _NOTED]

    def restore(self) -> None:
        """Put everything back, and release what no trial needs any more. The trial must not be running.

        Also forgets the peak of the memory, so that the next trial's is its own, and what torch has compiled.
        """
        for flag, value in self._flags:
            if flag.read() != value:
                flag.write(value)
        for hooks, content in self._hooks:
            if dict(hooks) != content:
                hooks.clear()
                hooks.update(content)
        for put_back, note in self._notes:
            put_back(note)
        _forget_caches()
        release_memory()


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _random_states() -> Any:
    cuda = torch.cuda.get_rng_state_all() if _uses_cuda() else None
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), cuda


def _put_back_random(states: Any) -> None:
    host, numpy, python, cuda = states
    torch.set_rng_state(host)
    np.random.set_state(numpy)
    random.setstate(python)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


def _put_back_environment(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _folder() -> str:
    with suppress(OSError):  # it has been removed
        return os.getcwd()
    return os.sep


def _put_back_folder(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _put_back_filters(filters: list[Any]) -> None:
    if warnings.filters != filters:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _logger_levels() -> dict[str, int]:
    loggers = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {"": logging.root.level, **{name: logger.level for name, logger in loggers.items()}}


def _put_back_levels(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logger = logging.getLogger(name)
        if logger.level != level:
            logger.setLevel(level)


def _put_back_device(device: torch.device) -> None:
    # None rather than the CPU: a default that is set slows every call of torch down
    torch.set_default_device(None if device.type == "cpu" else device)


_NOTED: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (torch.get_default_device, _put_back_device),  # first: what follows makes tensors
    (_random_states, _put_back_random),
    (lambda: dict(os.environ), _put_back_environment),
    (_folder, _put_back_folder),
    (lambda: list(warnings.filters), _put_back_filters),
    (_logger_levels, _put_back_levels),
]


def _forget_caches() -> None:
    apply_compiler_settings(TrainerConfig())  # those of a trial that compiles nothing
    permutation.cache_clear()
    torch.clear_autocast_cache()
    forget_sharding_caches()


def release_memory() -> None:
    """Give the memory of what is not referred to any more back to the system, and let its peak start again."""
    gc.collect()
    if _uses_cuda():
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    forget_peak()


@contextmanager
def fresh_process_group(
    store: Any, name: str, rank: int, world_size: int, backend: str, timeout_seconds: float
) -> Iterator[None]:
    """A default process group of the body's own, in place of whatever there is. Every rank must enter it.

    It is ended afterwards with all of its subgroups, also when the body has aborted it. Its sockets are closed once the
    last thing that refers to it is gone: release the trainer, then `ProcessState.restore`.

    Args:
        store: a `torch.distributed.Store` that all ranks are connected to, and that outlives the group: that of the
            first process group, say.
        name: sets what the group writes into the store apart; the same on all ranks, and never used before.
        backend: `gloo`, `nccl`, or one for each kind of device (`cpu:gloo,cuda:nccl`).
        timeout_seconds: how long a collective operation may wait for the other ranks.
    """
    end_process_groups()
    own = PrefixStore(name, store)
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=timeout)
    failed = True
    try:
        yield
        failed = not dist.is_initialized()  # the body has caught what went wrong, and aborted the group
    finally:
        leave_together(own, world_size, waits=not failed)
        end_process_groups(abort=failed)


def leave_together(store: Any, world_size: int, waits: bool = True) -> None:
    """Wait until no rank needs the connections any more: gloo's break when one side is closed with the other at work,
    and so do those to the store when the process that holds it ends.

    A rank that failed does not wait for the others, and they not for it.
    """
    with suppress(dist.DistError):
        if store.add("paceline/left", 1) == world_size:
            store.set("paceline/all_left", "")
        elif waits:
            store.wait(["paceline/all_left"], timedelta(seconds=FAREWELL_SECONDS))


def end_process_groups(abort: bool = False) -> None:
    """End all process groups of this process, if there are any.

    Args:
        abort: do not wait for operations that are still running: NCCL's may never end.
    """
    if abort:
        with suppress(Exception):
            abort_process_group()
    if dist.is_initialized():
        with suppress(Exception):
            dist.destroy_process_group()
