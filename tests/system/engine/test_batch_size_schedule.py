"""`data.batch_size_schedule` on ranks and with loader processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.spread import require_same, training
from support.toys import points, toy_config

STAGES = [{"samples": 0, "global_batch_size": 16}, {"samples": 130, "global_batch_size": 40}]
CHANGE = 9
"""Of 103 samples an epoch, the step at which the second stage begins."""
LAST = 14


def part(ranks: DistContext, folder: Path, stop_at: int | None, **more: Any) -> dict[str, Any]:
    """Train until asked to stop, or to the end."""
    config = toy_config(
        data__path=lambda: points(103, 31),
        data__global_batch_size=None,
        data__batch_size_schedule=STAGES,
        optimizer__lr_scaling="linear",
        optimizer__base_batch_size=16,
        optimizer__lr=0.05,
        lr_scheduler={"name": "linear", "warmup_samples": 60},
        trainer__epochs=3,
        scaling__num_workers=ranks.world_size,
        **more,
    )
    trainer = build_trainer(config, ranks, MemoryReporter(stop_at_step=stop_at), folder)
    start = trainer.state.position.step
    outcome = trainer.fit()
    weights = [parameter.detach().clone() for parameter in trainer.state.task.model.parameters()]
    steps = (start, outcome.step)
    return {"steps": steps, "sha": outcome.weights_sha256, "weights": weights, "seen": trainer.state.task.seen}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return part(DistContext.current(), tmp_path_factory.mktemp("whole"), None)


def are_close(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    pairs = zip(mine["weights"], theirs["weights"], strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in pairs)


def test_two_ranks_train_by_the_schedule_of_one(tmp_path: Path, whole: dict[str, Any]) -> None:
    results = run_ranks(part, 2, tmp_path, None)
    together = [set(sum(step, [])) for step in zip(*(result["seen"] for result in results), strict=True)]
    assert together == [set(ids) for ids in whole["seen"]]
    assert are_close(results[0], whole)


@pytest.mark.parametrize("stop_at", [CHANGE - 2, CHANGE, CHANGE + 2])
def test_two_workers_continue_as_one(tmp_path: Path, whole: dict[str, Any], stop_at: int) -> None:
    first = run_ranks(part, 2, tmp_path, stop_at)[0]
    rest = part(DistContext.current(), tmp_path, None)
    assert rest["steps"] == (first["steps"][1], LAST)
    assert first["steps"][1] >= stop_at  # ranks agree on it every few steps
    assert are_close(rest, whole)
    assert rest["seen"] == whole["seen"][first["steps"][1] :]


def test_one_worker_continues_as_two_with_a_fixed_micro_batch(tmp_path: Path, whole: dict[str, Any]) -> None:
    part(DistContext.current(), tmp_path, CHANGE - 1, data__micro_batch_size=8)
    assert are_close(run_ranks(part, 2, tmp_path, None, data__micro_batch_size=4)[0], whole)


def test_loader_processes_that_have_read_beyond_the_change_alter_nothing(tmp_path: Path, whole: dict[str, Any]) -> None:
    assert part(DistContext.current(), tmp_path, CHANGE - 1, data__num_workers=2)["steps"] == (0, CHANGE - 1)
    assert part(DistContext.current(), tmp_path, None, data__num_workers=2)["sha"] == whole["sha"]


@pytest.mark.parametrize("strategy", ["fsdp", "pipeline"])
@pytest.mark.parametrize("cut", [{"data__micro_batch_size": 4}, {}], ids=["micro batch", "accumulation"])
def test_spread_weights_train_by_the_schedule_as_one_process_does(strategy: str, cut: dict[str, Any]) -> None:
    stages = [{"samples": 0, "global_batch_size": 8}, {"samples": 50, "global_batch_size": 16}]
    fixed = {"trainer__gradient_accumulation_steps": "auto"} if cut else {}
    more = {"data__global_batch_size": None, "data__batch_size_schedule": stages, **cut, **fixed}
    alone = training(DistContext.current(), **more)
    spread = run_ranks(training, 2, parallel__strategy=strategy, **more)[0]
    require_same(spread, alone, steps=6 + 1 + 3)
