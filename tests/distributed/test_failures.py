"""A rank that raises ends all ranks at once, with its reason."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.engine import failure
from paceline.engine.failure import RankFailed, failing_together, is_communication_error
from paceline.engine.ranks import Ranks
from support.ranks import end_ranks
from support.toys import Points, fit, toy_config

STAY_SECONDS = 4.5


class Breaking(Points):
    """Raises on one sample."""

    def __getitem__(self, index: int) -> Any:
        if index == 40:
            raise ZeroDivisionError("sample 40 is broken")
        return super().__getitem__(index)


def train_on_broken_data(ranks: Ranks) -> str:
    config = toy_config(
        data__path=lambda: (Breaking(96), Points(4)),
        data__global_batch_size=18,
        scaling__num_workers=ranks.world_size,
    )
    try:
        failing_together(ranks, lambda: fit(config, ranks))
    except RankFailed as error:
        _stay_alive(ranks, error)
        return f"{error.failure.rank}|{error.failure.reason}|{'__getitem__' in error.failure.traceback_text}"
    return "no failure"


def _stay_alive(ranks: Ranks, error: RankFailed) -> None:
    """The failing process does not exit, as under Ray: the others must be freed all the same."""
    if ranks.rank == error.failure.rank and ranks.world_size > 1:
        time.sleep(STAY_SECONDS)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_end_with_the_reason_of_the_one_that_failed(world_size: int) -> None:
    endings = end_ranks(train_on_broken_data, world_size)
    told = {ending.value for ending in endings}
    assert len(told) == 1
    assert told.pop().endswith("|ZeroDivisionError: sample 40 is broken|True")
    assert sum(ending.seconds < STAY_SECONDS for ending in endings) >= world_size - 1


def raise_while_the_other_waits(ranks: Ranks, failing: int) -> str:
    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.rank == failing:
            time.sleep(1.0)
            raise LookupError("boom")
        ranks.sum(torch.ones(1))

    try:
        failing_together(ranks, body)
    except RankFailed as error:
        _stay_alive(ranks, error)
        return error.failure.reason
    return "no failure"


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_stands_in_a_collective_is_freed(failing: int) -> None:
    endings = end_ranks(raise_while_the_other_waits, 2, failing)
    assert [ending.value for ending in endings] == ["LookupError: boom"] * 2
    assert endings[1 - failing].seconds < STAY_SECONDS


WORDS = (
    "connection reset by my database",
    "aborted by validation",
    "this process group of customers has no NCCL",
    "gloo",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer",
)
"""What users may say in errors of their own, down to a copy of gloo's."""


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
@pytest.mark.parametrize("text", WORDS)
def test_an_error_of_the_user_is_one_whatever_it_says(raising: Callable[[str], None], text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        raising(text)
    assert text in str(caught.value)
    assert not is_communication_error(caught.value)


def test_torchs_own_error_about_the_users_code_is_the_users() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_communication_error(caught.value)


def test_the_process_groups_own_classes_are_communication() -> None:
    with pytest.raises(dist.DistError) as caught:
        dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=timedelta(milliseconds=100))
    assert is_communication_error(caught.value)


def speak_like_the_network(ranks: Ranks) -> str:
    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.rank == 1:
            raise RuntimeError(WORDS[0])
        ranks.sum(torch.ones(1))

    try:
        failing_together(ranks, body)
    except RankFailed as error:
        _stay_alive(ranks, error)
        return f"{error.failure.rank}|{error.failure.reason}"
    return "no failure"


def test_such_an_error_is_told_on_all_ranks_and_not_retried() -> None:
    endings = end_ranks(speak_like_the_network, 2)
    assert [ending.value for ending in endings] == [f"1|RuntimeError: {WORDS[0]}"] * 2


# A process that is killed


def in_an_all_reduce(ranks: Ranks) -> None:
    for _ in range(100_000):
        ranks.sum(torch.ones(5_000_000))


def in_an_all_reduce_of_the_users_own(ranks: Ranks) -> None:
    for _ in range(100_000):
        dist.all_reduce(torch.ones(5_000_000), async_op=True).wait()


def in_ddps_backward(ranks: Ranks) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2000, 2000), nn.Linear(2000, 2000)))
    for _ in range(100_000):
        model(torch.ones(2, 2000)).sum().backward()


def in_ddps_forward(ranks: Ranks) -> None:
    model = DistributedDataParallel(nn.BatchNorm1d(8))  # its buffers are shared at each forward
    model(torch.ones(2, 8)).sum().backward()
    time.sleep(2.0 if ranks.is_first else 60.0)
    model(torch.ones(2, 8))


def in_gathering_names(ranks: Ranks) -> None:
    for _ in range(100_000):
        ranks.union(["x" * 1_000_000])


def killed_in(ranks: Ranks, doing: Callable[[Ranks], None], victim: int) -> str:
    failure.GRACE_SECONDS = 1.0
    if ranks.rank == victim:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        failing_together(ranks, lambda: doing(ranks))
    except RankFailed as error:
        return f"blamed on code: {error}"
    except RuntimeError as error:
        return "communication broke" if is_communication_error(error) else f"something else: {error}"
    return "no failure"


@pytest.mark.parametrize(
    "doing",
    [in_an_all_reduce, in_an_all_reduce_of_the_users_own, in_ddps_backward, in_ddps_forward, in_gathering_names],
)
def test_a_rank_killed_in_mid_work_is_a_loss_of_communication(doing: Callable[[Ranks], None]) -> None:
    endings = end_ranks(killed_in, 2, doing, 1)
    assert endings[1].error == "died without a word"
    assert endings[0].value == "communication broke"


def read_late(ranks: Ranks) -> str:
    """The reason of rank 0, which holds the store, is there for a rank that is slow to look."""
    read = failure._Board.read

    def slowly(board: Any) -> Any:
        time.sleep(1.5)
        return read(board)

    if ranks.rank == 1:
        failure._Board.read = slowly  # type: ignore[method-assign]
    return raise_while_the_other_waits(ranks, 0)


def test_a_rank_that_is_slow_to_look_learns_the_reason_too() -> None:
    endings = end_ranks(read_late, 2)
    assert [ending.value for ending in endings] == ["LookupError: boom"] * 2


def end_before_the_other_notices(ranks: Ranks) -> str:
    """Rank 0 fails and ends, and its store with it, while rank 1 is busy with something else."""

    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.is_first:
            raise LookupError("boom")
        time.sleep(3.0)
        ranks.sum(torch.ones(1))

    try:
        failing_together(ranks, body)
    except RankFailed as error:
        return f"{error.failure.rank}: {error.failure.reason}"
    return "no failure"


def test_a_reason_that_was_acknowledged_outlives_the_store() -> None:
    endings = end_ranks(end_before_the_other_notices, 2)
    assert [ending.value for ending in endings] == ["0: LookupError: boom"] * 2


def die_while_the_other_waits(ranks: Ranks, victim: int) -> str:
    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.sum(torch.ones(1))

    try:
        failing_together(ranks, body)
    except RankFailed as error:
        return f"blamed on code: {error}"
    except RuntimeError:
        return "communication broke"
    return "no failure"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_not_blamed_on_the_code_of_another(victim: int) -> None:
    endings = end_ranks(die_while_the_other_waits, 2, victim)
    assert endings[victim].error == "died without a word"
    assert endings[1 - victim].value == "communication broke"
    assert endings[1 - victim].seconds < 15
