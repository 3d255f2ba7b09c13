"""A rank that raises ends all ranks at once, with its reason."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch

from paceline.engine.failure import RankFailed, failing_together
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
