"""A rank that raises ends all ranks at once, with its reason; one that is killed is a loss of communication."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.engine import failure
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together, is_communication_error
from support.ranks import end_ranks, run_ranks
from support.toys import Points, fit, toy_config

WAIT_SECONDS = 100.0
WORDS = (
    "connection reset by my database",
    "aborted by validation",
    "this process group of customers has no NCCL",
    "gloo",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer",
)
"""Texts of errors that users raise themselves, down to a copy of gloo's."""


class RankEnd(NamedTuple):
    """The end of a rank."""

    rank: int
    """The one that failed."""
    reason: str
    has_traceback: bool
    freed: bool = True
    """The failing process saw all others end before it ended itself, as it must under Ray."""


def ending(ranks: DistContext, body: Callable[[], Any], folder: Path) -> RankEnd | None:
    failure.POLL_SECONDS = 0.1
    try:
        failing_together(ranks, body)
    except RankFailed as error:
        told = RankEnd(error.failure.rank, error.failure.reason, "Traceback" in error.failure.traceback_text)
        if ranks.rank != told.rank:
            (folder / str(ranks.rank)).touch()
            return told
        deadline = time.monotonic() + WAIT_SECONDS
        while len(list(folder.iterdir())) < ranks.world_size - 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        return told._replace(freed=time.monotonic() < deadline)
    return None


class Breaking(Points):
    """Raises on one sample."""

    def __getitem__(self, index: int) -> Any:
        if index == 40:
            raise ZeroDivisionError("sample 40 is broken")
        return super().__getitem__(index)


def train_on_broken_data(ranks: DistContext, folder: Path) -> RankEnd | None:
    config = toy_config(
        data__path=lambda: (Breaking(96), Points(4)),
        data__global_batch_size=18,
        scaling__num_workers=ranks.world_size,
    )
    return ending(ranks, lambda: fit(config, ranks), folder)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_end_with_the_reason_of_the_one_that_failed(world_size: int, tmp_path: Path) -> None:
    (told,) = set(run_ranks(train_on_broken_data, world_size, tmp_path))
    assert told[1:] == ("ZeroDivisionError: sample 40 is broken", True, True)


def raise_while_others_wait(
    ranks: DistContext, folder: Path, failing: int, error: Any, read_seconds: float
) -> RankEnd | None:
    read = failure._Board.read

    def slowly(board: Any) -> Any:
        time.sleep(read_seconds)
        return read(board)

    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.rank == failing:
            time.sleep(0.3)  # until the other stands in the next operation
            raise error
        ranks.sum(torch.ones(1))

    if ranks.rank != failing:
        failure._Board.read = slowly  # type: ignore[method-assign]
    return ending(ranks, body, folder)


@pytest.mark.parametrize(
    ("failing", "error", "reason", "read_seconds"),
    [
        (0, LookupError("boom"), "LookupError: boom", 0.0),
        (1, LookupError("boom"), "LookupError: boom", 0.0),
        (1, RuntimeError(WORDS[0]), f"RuntimeError: {WORDS[0]}", 0.0),
        (1, SystemExit(), "SystemExit: the code ended the program (status 0)", 0.0),
        (0, LookupError("boom"), "LookupError: boom", 1.0),  # rank 0 holds the store: a slow reader still finds it
    ],
)
def test_a_rank_in_a_collective_operation_is_freed(
    failing: int, error: BaseException, reason: str, read_seconds: float, tmp_path: Path
) -> None:
    told = run_ranks(raise_while_others_wait, 2, tmp_path, failing, error, read_seconds)
    assert told == [RankEnd(failing, reason, True)] * 2


def raise_at_the_same_time(ranks: DistContext, folder: Path) -> str:
    """Each rank reads that none has failed, before any of them writes its reason."""
    post = failure._Board.post

    def together(board: Any, reason: Any) -> None:
        (folder / str(ranks.rank)).touch()
        while len(list(folder.iterdir())) < ranks.world_size:
            time.sleep(0.01)
        post(board, reason)

    def body() -> None:
        raise LookupError(f"boom on {ranks.rank}")

    failure._Board.post = together  # type: ignore[method-assign]
    failure.GRACE_SECONDS = 1000.0
    try:
        failing_together(ranks, body)
    except RankFailed as error:
        return f"{error.failure.rank}: {error.failure.reason}"
    return "no failure"


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_fail_at_the_same_time_wait_for_nobody_and_report_one_reason(
    world_size: int, tmp_path: Path
) -> None:
    reasons = run_ranks(raise_at_the_same_time, world_size, tmp_path)
    assert reasons == [reasons[0]] * world_size
    first = reasons[0][0]
    assert reasons[0] == f"{first}: LookupError: boom on {first}"


def end_before_the_other_notices(ranks: DistContext) -> str:
    """Rank 0 fails and ends, and its store with it, while rank 1 is busy with something else."""
    first = int(ranks.from_first([float(os.getpid())])[0])

    def is_alive() -> bool:
        try:
            return psutil.Process(first).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.is_first:
            raise LookupError("boom")
        deadline = time.monotonic() + WAIT_SECONDS
        while is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        ranks.sum(torch.ones(1))

    failure.POLL_SECONDS = 0.1
    try:
        failing_together(ranks, body)
    except RankFailed as error:
        return f"{error.failure.rank}: {error.failure.reason}"
    return "no failure"


def test_a_reason_that_was_acknowledged_outlives_the_store() -> None:
    assert run_ranks(end_before_the_other_notices, 2) == ["0: LookupError: boom"] * 2


# Whose error it is


def plainly(text: str) -> None:
    raise RuntimeError(text)


def in_backward(text: str) -> None:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(text)

    Function.apply(torch.ones(1, requires_grad=True)).backward()


def in_a_loader_process(text: str) -> None:
    class Data(torch.utils.data.Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError(text)

        def __len__(self) -> int:
            return 1

    batches: Any = iter(torch.utils.data.DataLoader(Data(), num_workers=1))
    try:
        next(batches)
    finally:
        batches._shutdown_workers()


@pytest.mark.parametrize("raising", [plainly, in_backward, in_a_loader_process])
def test_an_error_of_the_user_is_one_whatever_it_says(raising: Callable[[str], None]) -> None:
    for text in WORDS if raising is not in_a_loader_process else WORDS[-1:]:
        with pytest.raises(RuntimeError) as caught:
            raising(text)
        assert text in str(caught.value)
        assert not is_communication_error(caught.value)


def test_errors_of_torch() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_communication_error(caught.value)
    with pytest.raises(dist.DistError) as lost:
        dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=timedelta(milliseconds=100))
    assert is_communication_error(lost.value)


# A process that is killed


# Each yields when it is set up, and then goes on until it breaks. Killed within DDP's constructor, a rank may leave the
# other one waiting until the group's timeout: gloo's broadcast does not notice.


def in_an_all_reduce(ranks: DistContext) -> Iterator[None]:
    while True:
        ranks.sum(torch.ones(5_000_000))
        yield


def in_an_all_reduce_of_the_users_own(ranks: DistContext) -> Iterator[None]:
    while True:
        dist.all_reduce(torch.ones(5_000_000), async_op=True).wait()
        yield


def in_ddps_backward(ranks: DistContext) -> Iterator[None]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2000, 2000), nn.Linear(2000, 2000)))
    while True:
        model(torch.ones(2, 2000)).sum().backward()
        yield


def in_ddps_forward(ranks: DistContext) -> Iterator[None]:
    model = DistributedDataParallel(nn.BatchNorm1d(8))  # its buffers are shared at each forward
    model(torch.ones(2, 8)).sum().backward()
    yield
    time.sleep(1.0 if ranks.is_first else 60.0)
    model(torch.ones(2, 8))


def in_gathering_names(ranks: DistContext) -> Iterator[None]:
    while True:
        ranks.union(["x" * 1_000_000])
        yield


def killed_in(ranks: DistContext, doing: Callable[[DistContext], Iterator[None]], victim: int) -> str:
    failure.GRACE_SECONDS = 0.5
    steps = doing(ranks)

    def work() -> None:
        next(steps)
        if ranks.rank == victim:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        for _ in steps:
            pass

    try:
        failing_together(ranks, work)
    except RankFailed as error:
        return f"blamed on code: {error}"
    except RuntimeError as error:
        return "communication broke" if is_communication_error(error) else f"something else: {error}"
    return "no failure"


@pytest.mark.parametrize(
    ("doing", "victim"),
    [
        (in_an_all_reduce, 0),
        (in_an_all_reduce, 1),
        (in_an_all_reduce_of_the_users_own, 1),
        (in_ddps_backward, 1),
        (in_ddps_forward, 1),
        (in_gathering_names, 1),
    ],
)
def test_a_killed_rank_is_a_loss_of_communication(doing: Callable[[DistContext], Iterator[None]], victim: int) -> None:
    endings = end_ranks(killed_in, 2, doing, victim)
    assert endings[victim].error == "died without a word"
    assert endings[1 - victim].value == "communication broke"
