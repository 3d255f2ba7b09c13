"""Runs a function as two or more gloo ranks, each in a process of its own, without Ray."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

import cloudpickle

from support.forkserver import CONTEXT, become_ordinary

STILL_RUNNING = "still running at the time-out"
"""Error of a rank that did not end."""


@dataclass
class Ending:
    """How one rank ended."""

    value: Any = None
    error: str | None = None


def run_ranks(
    function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = 150.0, **named: Any
) -> list[Any]:
    """`function(ranks, *arguments, **named)` on every rank; the return values in order. A rank's error is raised."""
    endings = end_ranks(function, world_size, *arguments, timeout=timeout, **named)
    errors = [f"rank {rank}: {ending.error}" for rank, ending in enumerate(endings) if ending.error is not None]
    errors.sort(key=lambda text: "gloo" in text)  # a rank that lost its peer says less than the peer
    assert not errors, errors[0]
    return [ending.value for ending in endings]


def end_ranks(
    function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = 150.0, **named: Any
) -> list[Ending]:
    """Like `run_ranks`, but tells how each rank ended, whatever that was."""
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    payload = cloudpickle.dumps((function, arguments, named))
    port = _free_port()
    pipes, processes = [], []
    for rank in range(world_size):
        mine, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_rank_main, args=(theirs, payload, rank, world_size, port))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    try:
        return _collect(pipes, timeout)
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _collect(pipes: list[Connection], timeout: float) -> list[Ending]:
    start, endings, open_pipes = monotonic(), [Ending(error=STILL_RUNNING) for _ in pipes], list(pipes)
    while open_pipes and monotonic() - start < timeout:
        for pipe in wait(open_pipes, timeout=1.0):
            open_pipes.remove(pipe)
            try:
                ending = cloudpickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                ending = Ending(error="died without a word")
            endings[pipes.index(pipe)] = ending
    return endings


def _rank_main(pipe: Connection, payload: bytes, rank: int, world_size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    from paceline.engine.dist_context import DistContext

    become_ordinary()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        dist.barrier()  # a function that ends the group at once would break the connections that others still make
        function, arguments, named = cloudpickle.loads(payload)
        ending = Ending(function(DistContext.current(), *arguments, **named))
    except BaseException as error:
        ending = Ending(error="".join(traceback.format_exception(error)))
    # as plain bytes: sent as an object, tensors would be shared with a process that is about to end
    pipe.send_bytes(cloudpickle.dumps(ending))
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
