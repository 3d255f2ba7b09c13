"""DistContext with different memory find one largest micro batch, and none of them waits for ever."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from paceline.engine import largest_batch
from paceline.engine.build_task import settle_sizes
from paceline.engine.dist_context import DistContext
from paceline.engine.free_memory import HostMemory
from paceline.engine.reporter import MemoryReporter
from paceline.errors import TrainingError
from support.ranks import run_ranks
from support.toys import FEATURES, fit, net, net_with_dropout_and_norm, points, toy_config

CASES = (
    # limit of rank 1, global batch, micro batch, accumulation
    (37, 148, 37, 2),  # a share of 74 samples, twice the limit
    (37, 96, 24, 2),
    (48, 96, 48, 1),
    (None, 96, 48, 1),
    (2, 12, 2, 3),
)


def limited(model: nn.Module, limit: int | None) -> nn.Module:
    """The net, with no memory for more than `limit` samples in training."""

    def check(module: nn.Module, inputs: Any) -> None:
        if limit is not None and module.training and len(inputs[0]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.register_forward_pre_hook(check)
    return model


def train(ranks: DistContext, micro: int | str, limit: int | None, folder: Path | None = None, **changes: Any) -> Any:
    """Train with a limit on the last rank alone; returns what must not depend on how the size came about."""
    own = limit if ranks.rank == ranks.world_size - 1 else None
    build = net if limit == 0 else net_with_dropout_and_norm  # one sample alone has no variance
    config = toy_config(
        model__path=lambda: limited(build(), own),
        data__path=lambda: points(228, 31, noisy=True),
        scaling__num_workers=ranks.world_size,
        data__micro_batch_size=micro,
        **{"trainer__epochs": 1, **changes},
    )
    trainer, outcome, reporter = fit(config, ranks, folder)
    told = [details["gradient_accumulation_steps"] for kind, details in reporter.events if kind == "batch"]
    seen = trainer.state.task.seen
    return told, (trainer.data.order.micro_batch_size, outcome.weights_sha256, reporter.values("train/loss"), seen)


def train_all_cases(ranks: DistContext) -> list[tuple[Any, Any]]:
    return [
        (
            train(ranks, "max", limit, data__global_batch_size=total),
            train(ranks, micro, limit, data__global_batch_size=total),
        )
        for limit, total, micro, _ in CASES
    ]


def test_a_limit_of_one_rank_binds_both_and_changes_no_bit() -> None:
    first, second = run_ranks(train_all_cases, 2)
    for (_, _, micro, accumulation), (found, written), (found_1, written_1) in zip(CASES, first, second, strict=True):
        assert found[0] == [accumulation]
        assert found[1][0] == micro
        assert found[1] == written[1]
        assert found_1[1] == written_1[1]


def train_without_memory_on_rank_1(ranks: DistContext) -> tuple[str, dict[str, Any]] | None:
    try:
        train(ranks, "max", 0)
    except TrainingError as error:
        return error.code, dict(error.fields)
    return None


def test_not_even_one_sample_on_one_rank_ends_both() -> None:
    endings = run_ranks(train_without_memory_on_rank_1, 2)
    assert endings == [("no-batch-fits", {"failed": 1, "workers": 2})] * 2


def resume_with(ranks: DistContext, folder: Path, limit: int) -> int:
    _, (micro, *_) = train(ranks, "max", limit, folder, data__global_batch_size=48, trainer__epochs=1 + limit)
    return int(micro)


def test_another_world_size_searches_again(tmp_path: Path) -> None:
    assert run_ranks(resume_with, 2, tmp_path, 7) == [6, 6]  # 24 samples in 4
    assert run_ranks(resume_with, 2, tmp_path, 9) == [6, 6]
    assert run_ranks(resume_with, 1, tmp_path, 10) == [10]  # 48 samples in 5


# A real limit

WIDTH = 8000
ROOM = 300 << 20


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))


class Patient(HostMemory):
    """Tries all sizes: here running out raises."""

    def expects(self, size: int) -> bool:
        return True


def search_with_little_room_on_rank_1(ranks: DistContext, patient: bool) -> int:
    if patient:
        largest_batch.memory_of = lambda ranks: Patient(1)
    config = toy_config(
        model__path=wide,
        data__path=lambda: points(4096, 8),
        data__global_batch_size=8192,
        data__micro_batch_size="max",
        scaling__num_workers=2,
    )
    if ranks.rank == 1:
        room = psutil.Process().memory_info().vms + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    sizes, _ = settle_sizes(config, ranks, MemoryReporter(), None)
    return sizes.micro_batch_size


@pytest.mark.parametrize("patient", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_real_limit_on_the_memory_of_one_rank(patient: bool) -> None:
    first, second = run_ranks(search_with_little_room_on_rank_1, 2, patient)
    assert first == second
    # float64: each sample takes at least WIDTH numbers before the ReLU and as many after it
    assert 100 < first < ROOM / (2 * 8 * WIDTH)
