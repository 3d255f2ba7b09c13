"""Rank 0 reports the times of all ranks, a straggler and the largest memory, in one exchange at a log."""

from __future__ import annotations

import platform
import time
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.metric_logger import MetricLogger
from paceline.engine.monitoring import stragglers
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.toys import Points, PointsTask, fit, net_with_dropout_and_norm, toy_config

PAUSE, LONG_PAUSE = 0.002, 0.010
"""Seconds that a sample, or a forward pass over eight of them, takes; a machine that is busy adds its own."""
FIGURES = ("rank_seconds/min", "rank_seconds/median", "rank_seconds/max")


def reported(ranks: DistContext, slow: int | None, part: str, **overrides: Any) -> dict[str, Any]:
    """Train while one rank takes longer for each of its samples, or for each forward pass."""
    is_slow = ranks.rank == slow

    class Loading(Points):
        def __getitem__(self, index: int) -> Any:
            time.sleep(LONG_PAUSE if is_slow and part == "data" else PAUSE)
            return super().__getitem__(index)

    class Computing(PointsTask):
        def forward(self, batch: Any) -> Any:
            time.sleep(12 * LONG_PAUSE if is_slow and part == "forward" else 0.0)
            return super().forward(batch)

    config = toy_config(
        data__path=lambda: (Loading(96), Points(4)),
        task__path=Computing,
        trainer__evaluate_every_n_epochs=0,
        trainer__log_every_n_steps=2,
        scaling__num_workers=ranks.world_size,
        **overrides,
    )
    with patch.object(
        stragglers, "SECONDS", 0.0
    ):  # undone, since the run of one rank shares its process with other tests
        _, _, reporter = fit(config, ranks)
    return {
        "warnings": [details for kind, details in reporter.events if kind == "warning"],
        "stragglers": [details for kind, details in reporter.events if kind == "straggler"],
        "stamps": [details for kind, details in reporter.events if kind == "stamp"],
        "datasets": [details for kind, details in reporter.events if kind == "datasets"],
        "points": [values for _, values in reporter.points if "train/loss" in values],
    }


CASES: list[tuple[int, str, dict[str, Any]]] = [
    (1, "data", {}),
    (1, "forward", {"trainer__gradient_accumulation_steps": 2}),
    (0, "data", {"model__path": net_with_dropout_and_norm}),  # whose forward pass begins by waiting for rank 0
    (1, "data", {"parallel__strategy": "fsdp"}),
]


@pytest.mark.parametrize(("slow", "part", "overrides"), CASES)
def test_a_slow_rank_is_named_once(slow: int, part: str, overrides: dict[str, Any]) -> None:
    first, second = run_ranks(reported, 2, slow, part, **overrides)
    (warning,), (straggler,) = first["warnings"], first["stragglers"]
    assert (straggler["rank"], straggler["host"], warning["code"]) == (slow, platform.node(), "straggler")
    assert straggler["factor"] == pytest.approx(straggler["seconds"] / straggler["others_seconds"])
    assert straggler["factor"] > 1.2
    assert (straggler["data_wait_share"] > 0.5) == (part == "data")
    assert ("data.num_workers" in warning["message"]) == (part == "data")
    assert straggler["text"] in warning["message"]
    assert (second["warnings"], second["stragglers"]) == ([], [])


def test_the_times_of_the_ranks_are_reported_at_each_log() -> None:
    first, second = run_ranks(reported, 2, 1, "data")
    assert len(first["points"]) == 6
    for values in first["points"]:
        least, middle, most = (values[key] for key in FIGURES)
        assert 8 * PAUSE <= least < most < values["step_seconds"] * 1.5
        assert most >= 8 * LONG_PAUSE
        assert middle == pytest.approx((least + most) / 2)
    for stamp in first["stamps"]:
        assert (stamp["workers"], stamp["nodes"], stamp["threads_per_worker"]) == (2, 1, 1)
    assert (second["points"], second["datasets"]) == ([], [])

    alone = reported(DistContext.current(), 0, "data")
    assert not [key for values in alone["points"] for key in values if key in FIGURES]
    assert alone["stragglers"] == []
    assert first["datasets"] == alone["datasets"]


class Wide(nn.Module):
    """Holds memory on one rank."""

    def __init__(self, is_wide: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.held = torch.ones(64 << 20 if is_wide else 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.inner(batch)  # type: ignore[no-any-return]


def memory(ranks: DistContext, wide: int | None) -> tuple[float, float]:
    """The memory that is reported where one rank holds more than the other."""
    build = {"model__path": lambda: Wide(ranks.rank == wide)}
    _, _, reporter = fit(toy_config(**build, scaling__num_workers=2, trainer__precision="32-true"), ranks)
    return max(reporter.values("memory_bytes"), default=0.0), max(reporter.values("peak_memory_bytes"), default=0.0)


def test_memory_is_that_of_the_rank_with_the_most() -> None:
    (now, peak), (plain_now, plain_peak) = run_ranks(memory, 2, 1)[0], run_ranks(memory, 2, None)[0]
    assert now - plain_now > 200 << 20
    assert peak - plain_peak > 200 << 20


def collectives(ranks: DistContext) -> dict[str, dict[int, int]]:
    """The sums over the ranks in each step: before the backward pass, at the log, and to agree on a stop."""
    config = toy_config(scaling__num_workers=2, trainer__log_every_n_steps=3, trainer__evaluate_every_n_epochs=0)
    trainer = build_trainer(config, ranks, MemoryReporter())
    calls: Counter[str] = Counter()
    found: dict[str, dict[int, int]] = {"begin": {}, "log": {}, "agree": {}}

    def counting(name: str, function: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **named)

        return counted

    def into(place: dict[int, int], function: Any, ahead: int = 0) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            before = Counter(calls)
            result = function(*arguments, **named)
            assert set(calls - before) <= {"all_reduce"}
            place[trainer.state.position.step + ahead] = (calls - before).total()
            return result

        return counted

    for name in ("all_reduce", "all_gather", "broadcast", "all_gather_object", "gather_object", "barrier"):
        setattr(dist, name, counting(name, getattr(dist, name)))
    logger = next(each for each in trainer.callbacks if isinstance(each, MetricLogger))
    logger._begin = into(found["begin"], logger._begin, ahead=1)  # type: ignore[method-assign]
    logger._log = into(found["log"], logger._log)  # type: ignore[method-assign]
    trainer._agree = into(found["agree"], trainer._agree)  # type: ignore[method-assign]
    trainer.fit()
    return found


def test_a_log_is_one_exchange_which_begins_before_the_backward_pass() -> None:
    found = run_ranks(collectives, 2)[0]
    assert found["begin"] == {step: int(step in (3, 6, 9)) for step in range(1, 13)}
    assert found["log"] == {3: 0, 6: 0, 9: 0, 12: 1}, "the readings of the last log are those of the end"
    assert list(found["agree"]) == list(range(1, 13))
    # to ask whether to stop is one, now and then
    assert all(calls <= 1 for step, calls in found["agree"].items() if 1 < step < 12)


def losses(ranks: DistContext, overlapped: bool) -> list[tuple[int, float]]:
    """What is logged of a training with uneven batches, some steps of which one rank has no sample in."""
    config = toy_config(
        data__path=lambda: (Points(37), Points(4)),
        data__global_batch_size=6,
        data__micro_batch_size=1,
        scaling__num_workers=2,
        trainer__log_every_n_steps=2,
    )
    reporter = MemoryReporter()
    trainer = build_trainer(config, ranks, reporter)
    if not overlapped:
        logger = next(each for each in trainer.callbacks if isinstance(each, MetricLogger))
        logger._beside = None
    trainer.fit()
    return [(step, values["train/loss"]) for step, values in reporter.points if "train/loss" in values]


def test_a_log_has_the_same_losses_when_its_exchange_begins_before_the_backward_pass() -> None:
    overlapped = run_ranks(losses, 2, True)[0]
    assert len(overlapped) > 5
    assert overlapped == run_ranks(losses, 2, False)[0]
