"""Trials that run one after the other in the same process, each as if it were the first.

Process-wide state is noted before the first trial and restored after each. Each trial has a process group of its own,
so that a failed trial does not affect the next.
"""

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
from paceline.engine.host_allocator import return_freed_memory
from paceline.engine.order import permutation

FAREWELL_SECONDS = 10.0
"""Seconds that a rank that is done with a process group waits for the others to be done, too."""


class ProcessState:
    """State of the process that a trial may change: create it before the first trial, `restore` it after each.

    It holds torch's flags, hooks and random generators, numpy's and Python's random generators, numpy's handling of
    errors, environment variables, the working directory, filters of warnings, levels of loggers, and limits of Python.
    State that code keeps in its own modules is not restored.

    Objects that exist before are excluded from garbage collection from then on. Collecting them would take longer than
    all other work of `restore` together.
    """

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        self._flags = [(flag, flag.read()) for flag in FLAGS]
        self._hooks = [(hooks, dict(hooks)) for hooks in HOOKS]
        self._notes = [(put_back, note()) for note, put_back in _NOTED]

    def restore(self) -> None:
        """Restore the state, and release memory that is not used any more. The trial must not be running.

        Also resets the peak of the memory, so that the next trial measures its own, and drops torch's compiled code.
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
    apply_compiler_settings(TrainerConfig())  # the settings of a trial that compiles nothing
    permutation.cache_clear()
    torch.clear_autocast_cache()
    forget_sharding_caches()


def release_memory() -> None:
    """Return the memory of unreferenced objects to the system, and reset its peak."""
    gc.collect()
    if _uses_cuda():
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
    return_freed_memory()
    forget_peak()


@contextmanager
def fresh_process_group(
    store: Any, name: str, rank: int, world_size: int, backend: str, timeout_seconds: float
) -> Iterator[None]:
    """Run the body with a new default process group, in place of the existing one. Every rank must enter it.

    The group is ended afterwards with all of its subgroups, also when the body has aborted it. Its sockets are closed
    once the last reference to it is dropped: release the trainer, then call `ProcessState.restore`.

    Args:
        store: a `torch.distributed.Store` that all ranks are connected to and that outlives the group, such as that of
            the first process group.
        name: prefix of the group's keys in the store; the same on all ranks, and never used before.
        backend: `gloo`, `nccl`, or one for each kind of device (`cpu:gloo,cuda:nccl`).
        timeout_seconds: seconds that a collective operation may wait for the other ranks.
    """
    end_process_groups()
    own = PrefixStore(name, store)
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=timeout)
    failed = True
    try:
        _enter_together(own, world_size, timeout)
        yield
        failed = not dist.is_initialized()  # the body has caught an error, and aborted the group
    finally:
        leave_together(own, world_size, waits=not failed)
        end_process_groups(abort=failed)


def _enter_together(store: Any, world_size: int, timeout: timedelta) -> None:
    """Wait until all ranks are connected: one that fails at once would break the connections that others still make.

    Raises:
        torch.distributed.DistError: a rank did not come within `timeout`.
    """
    if store.add("paceline/entered", 1) == world_size:
        store.set("paceline/all_entered", "")
    else:
        store.wait(["paceline/all_entered"], timeout)


def leave_together(store: Any, world_size: int, waits: bool = True) -> None:
    """Wait until no rank needs the connections any more.

    A connection of gloo breaks when one side closes while the other still uses it. Connections to the store break when
    the process that holds it ends. A rank that failed does not wait for the others, nor they for it.
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
