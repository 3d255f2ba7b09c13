"""Rungs: where training stops to be compared, what is told there, and that nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together
from paceline.engine.reporter import MemoryReporter
from paceline.engine.rungs import Rungs, ask_first
from support.ranks import end_ranks, run_ranks
from support.toys import net_with_dropout_and_norm, points, toy_config

EVERY_40 = Rungs(40)
"""Steps are of 16 samples: rungs are reached at the steps 3, 5, 8 and 10 of 12."""


def asked_at(reporter: MemoryReporter) -> list[int]:
    return [step for step, _ in reporter.asked]


TECHNIQUES: dict[str, dict[str, Any]] = {
    "accumulation, logging seldom": {"data__micro_batch_size": 2, "trainer__log_every_n_steps": 5},
    "bf16, checkpointing": {"trainer__precision": "bf16-mixed", "trainer__activation_checkpointing": "selective"},
    "adascale": {"optimizer__lr_scaling": "adascale", "optimizer__base_batch_size": 4},
    "powersgd": {"parallel__comm_hook": "powersgd", "parallel__powersgd_start_step": 2},
    "pipeline": {"parallel__strategy": "pipeline", "trainer__gradient_accumulation_steps": 2},
    "noisy data": {"data__path": lambda: points(96, 31, noisy=True)},
}


def model() -> nn.Module:
    return nn.Sequential(net_with_dropout_and_norm(), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))


def with_and_without(ranks: DistContext, folder: Path) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = {}
    for name, overrides in TECHNIQUES.items():
        settings = {"model__path": model, **overrides}
        config = toy_config(scaling__num_workers=ranks.world_size, **settings)
        for rungs in (None, EVERY_40):
            reporter = MemoryReporter()
            trainer = build_trainer(config, ranks, reporter, folder / name / str(rungs is None), rungs)
            outcome = trainer.fit()
            told = outcome.weights_sha256, reporter.values("train/loss"), outcome.metrics.get("val/loss")
            results.setdefault(name, []).append((told, asked_at(reporter)))
    return results


def test_rungs_change_no_bit(tmp_path: Path) -> None:
    results = run_ranks(with_and_without, 2, tmp_path)[0]
    assert results.keys() == TECHNIQUES.keys()
    for name, (without, with_rungs) in results.items():
        assert with_rungs[0] == without[0], name
        assert (without[1], with_rungs[1]) == ([], [3, 5, 8, 10]), name


def stop_and_go_on(ranks: DistContext, folder: Path) -> list[Any]:
    told = []
    config = toy_config(scaling__num_workers=ranks.world_size)
    for stop_at in (5, None):
        reporter = MemoryReporter(stop_at_rung=stop_at)
        outcome = build_trainer(config, ranks, reporter, folder, EVERY_40).fit()
        told.append((outcome.stopped, outcome.step, asked_at(reporter)))
    return told


def test_all_ranks_follow_the_answer_to_rank_0(tmp_path: Path) -> None:
    first, second = run_ranks(stop_and_go_on, 2, tmp_path)
    assert first == [(True, 5, [3, 5]), (False, 12, [8, 10])]
    assert second == [(True, 5, []), (False, 12, [])]


class Dying(MemoryReporter):
    """Fails instead of an answer."""

    def rung(self, step: int, values: Mapping[str, float]) -> bool:
        raise LookupError


def fail_at_a_rung(ranks: DistContext) -> str:
    config = toy_config(scaling__num_workers=ranks.world_size)
    try:
        failing_together(ranks, lambda: build_trainer(config, ranks, Dying(), None, EVERY_40).fit())
    except RankFailed as error:
        return error.failure.reason
    return "no failure"


def test_an_error_instead_of_an_answer_ends_all_ranks() -> None:
    assert run_ranks(fail_at_a_rung, 2) == ["LookupError: "] * 2


def wait_for_long(ranks: DistContext, seconds: float, round_seconds: float) -> tuple[bool, float]:
    ranks.sum_numbers([1.0])  # the ranks start together: one that is a second behind would look dead
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    start = time.monotonic()
    return ask_first(ranks, lambda: bool(time.sleep(seconds)), round_seconds), time.monotonic() - start


def test_the_others_wait_for_longer_than_an_operation_may_take() -> None:
    for answer, seconds in run_ranks(wait_for_long, 2, 2.0, 0.25):
        assert (answer, seconds > 1.9) == (False, True)
    impatient = end_ranks(wait_for_long, 2, 2.0, 30.0)
    assert impatient[1].error is not None, "without rounds they would time out"
