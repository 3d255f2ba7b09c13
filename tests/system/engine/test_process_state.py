"""Trials of one process have process groups of their own."""

from __future__ import annotations

import os
import threading
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import pytest
import torch

from paceline.engine.dist_context import DistContext
from paceline.engine.failure import failing_together
from paceline.engine.fresh import ProcessState, end_process_groups, fresh_process_group
from paceline.engine.outcome import Diverged
from support.ranks import run_ranks


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def grown(early: tuple[int, ...], late: tuple[int, ...]) -> bool:
    """One file more or less is a connection that rank 0's store has yet to close; a leak would be one a trial."""
    return late[0] > early[0] + 1 or late[1:] != early[1:]


def base_store() -> Any:
    from paceline._compat.torch import default_store

    return default_store()


def fail_in_turns(ranks: DistContext, times: int) -> tuple[list[str], list[Any]]:
    """Every other trial fails on one rank while the other stands in a collective operation."""
    from paceline.engine.failure import RankFailed

    store, state, told, seen = base_store(), ProcessState(), [], []

    def body(number: int, mine: DistContext) -> float:
        mine.sum(torch.ones(1))
        if number % 2 and ranks.rank == number // 2 % 2:
            raise (
                Diverged(f"trial {number}", "loss-not-finite")
                if number % 4 == 1
                else torch.OutOfMemoryError("CUDA out of memory")
            )
        return mine.sum_numbers([1.0])[0]

    def trial(number: int) -> str:
        with fresh_process_group(store, f"trial/{number}", ranks.rank, ranks.world_size, "gloo", 20.0):
            mine = DistContext.current()
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


def raise_out_of_it(ranks: DistContext) -> bool:
    store = base_store()
    with pytest.raises(LookupError), fresh_process_group(store, "a", ranks.rank, 2, "gloo", 20.0):
        raise LookupError
    is_over = not torch.distributed.is_initialized()
    end_process_groups()  # there is none
    with fresh_process_group(store, "b", ranks.rank, 2, "gloo", 20.0):
        return is_over and DistContext.current().sum_numbers([1.0]) == [2.0]


def test_an_error_ends_the_group_too() -> None:
    assert run_ranks(raise_out_of_it, 2) == [True, True]


def enter_late(ranks: DistContext) -> tuple[float, float]:
    """The times at which this rank is connected, on rank 1 half a second late, and at which its body begins."""
    connect = torch.distributed.init_process_group
    connected = []

    def slow(*arguments: Any, **named: Any) -> None:
        connect(*arguments, **named)
        sleep(0.5 * ranks.rank)
        connected.append(monotonic())

    with (
        patch.object(torch.distributed, "init_process_group", slow),
        fresh_process_group(base_store(), "late", ranks.rank, 2, "gloo", 20.0),
    ):
        return connected[0], monotonic()


def test_no_rank_begins_before_all_are_connected() -> None:
    """One that failed at once would close the connection that another is about to make."""
    ranks = run_ranks(enter_late, 2)
    assert min(began for _, began in ranks) >= max(connected for connected, _ in ranks)
