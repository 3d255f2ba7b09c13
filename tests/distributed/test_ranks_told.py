"""What rank 0 tells of all ranks: their times, a straggler by name, the largest memory; in one exchange at a log."""

from __future__ import annotations

import platform
import time
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.engine.build import build_trainer
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.toys import Points, PointsTask, fit, net_with_dropout_and_norm, toy_config

PAUSE, LONG_PAUSE = 0.004, 0.010
"""Seconds that a sample, or a forward pass over eight of them, takes; a machine that is busy adds its own."""
FIGURES = ("rank_seconds/min", "rank_seconds/median", "rank_seconds/max")


def told(ranks: Ranks, slow: int | None, part: str, **overrides: Any) -> dict[str, Any]:
    """Train while one rank takes longer for each of its samples, or for each forward pass."""
    is_slow = ranks.rank == slow

    class Loading(Points):
        def __getitem__(self, index: int) -> Any:
            time.sleep(LONG_PAUSE if is_slow and part == "data" else PAUSE)
            return super().__getitem__(index)

    class Computing(PointsTask):
        def forward(self, batch: Any) -> Any:
            time.sleep(16 * LONG_PAUSE if is_slow and part == "forward" else 0.0)
            return super().forward(batch)

    config = toy_config(
        data__path=lambda: (Loading(96), Points(4)),
        task__path=Computing,
        trainer__epochs=5,
        trainer__evaluate_every_n_epochs=0,
        trainer__log_every_n_steps=2,
        scaling__num_workers=ranks.world_size,
        **overrides,
    )
    _, _, reporter = fit(config, ranks)
    return {
        "warnings": [details["message"] for kind, details in reporter.events if kind == "warning"],
        "stragglers": [details for kind, details in reporter.events if kind == "straggler"],
        "stamps": [details for kind, details in reporter.events if kind == "stamp"],
        "points": [values for _, values in reporter.points if "train/loss" in values],
    }


ACCUMULATED = {"trainer__gradient_accumulation_steps": 2}
WITH_BUFFERS = {"model__path": net_with_dropout_and_norm}
CASES: list[tuple[int, str, dict[str, Any]]] = [
    (1, "data", {}),
    (0, "forward", {}),
    (1, "forward", ACCUMULATED),
    (0, "data", WITH_BUFFERS),  # whose forward pass begins by waiting for rank 0
    (1, "data", {"parallel__strategy": "fsdp"}),
]


@pytest.mark.parametrize(("slow", "part", "overrides"), CASES)
def test_a_slow_rank_is_named_once(slow: int, part: str, overrides: dict[str, Any]) -> None:
    first, second = run_ranks(told, 2, slow, part, **overrides)
    (warning,), (straggler,) = first["warnings"], first["stragglers"]
    assert (straggler["rank"], straggler["host"]) == (slow, platform.node())
    assert straggler["factor"] == pytest.approx(straggler["seconds"] / straggler["others_seconds"])
    assert straggler["factor"] > 1.2
    assert f"rank {slow} on {platform.node()} takes {straggler['factor']:.1f} times as long" in warning
    assert ("data.num_workers" in warning) == (part == "data")
    assert ("other programs" in warning) == (part == "forward")
    assert straggler["text"] in warning
    assert (second["warnings"], second["stragglers"]) == ([], [])


def test_ranks_that_are_alike_are_not_named() -> None:
    first, _ = run_ranks(told, 2, None, "data")
    assert (first["warnings"], first["stragglers"]) == ([], [])


def test_the_times_of_the_ranks_are_told_at_each_log() -> None:
    first, second = run_ranks(told, 2, 1, "data")
    assert len(first["points"]) == 15
    for values in first["points"]:
        least, middle, most = (values[key] for key in FIGURES)
        assert 8 * PAUSE <= least < most < values["step_seconds"] * 1.5
        assert most >= 8 * LONG_PAUSE
        assert middle == pytest.approx((least + most) / 2)
    assert second["points"] == []


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    alone = told(Ranks.current(), 0, "data")
    assert not [key for values in alone["points"] for key in values if key in FIGURES]
    assert alone["stragglers"] == []


def test_the_stamp_counts_the_workers() -> None:
    for stamp in run_ranks(told, 2, None, "data")[0]["stamps"]:
        assert (stamp["workers"], stamp["nodes"], stamp["threads_per_worker"]) == (2, 1, 1)


class Wide(nn.Module):
    """Holds memory on one rank."""

    def __init__(self, is_wide: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.held = torch.ones(64 << 20 if is_wide else 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.inner(batch)  # type: ignore[no-any-return]


def memory(ranks: Ranks) -> tuple[float, float]:
    """What is told of the memory."""
    config = toy_config(model__path=lambda: Wide(ranks.rank == 1), scaling__num_workers=2, trainer__precision="32-true")
    _, _, reporter = fit(config, ranks)
    return max(reporter.values("memory_bytes"), default=0.0), max(reporter.values("peak_memory_bytes"), default=0.0)


def plain_memory(ranks: Ranks) -> tuple[float, float]:
    """The same where no rank holds more than the other."""
    _, _, reporter = fit(toy_config(scaling__num_workers=2, trainer__precision="32-true"), ranks)
    return max(reporter.values("memory_bytes"), default=0.0), max(reporter.values("peak_memory_bytes"), default=0.0)


def test_memory_is_that_of_the_rank_with_the_most() -> None:
    (now, peak), (plain_now, plain_peak) = run_ranks(memory, 2)[0], run_ranks(plain_memory, 2)[0]
    assert now - plain_now > 200 << 20
    assert peak - plain_peak > 200 << 20


def collectives(ranks: Ranks) -> tuple[dict[int, dict[str, int]], dict[int, dict[str, int]]]:
    """The collective operations of each log, and all others until the end of each step, by step."""
    config = toy_config(scaling__num_workers=2, trainer__log_every_n_steps=3, trainer__evaluate_every_n_epochs=0)
    trainer = build_trainer(config, ranks, MemoryReporter())
    calls: Counter[str] = Counter()
    logs: dict[int, dict[str, int]] = {}
    others: dict[int, dict[str, int]] = {}
    for name in ("all_reduce", "all_gather", "broadcast", "all_gather_object", "gather_object", "barrier"):
        setattr(dist, name, _counting(name, getattr(dist, name), calls))

    def into(found: dict[int, dict[str, int]], function: Any) -> Any:
        def counted() -> Any:
            before = Counter(calls) if found is logs else Counter[str]()
            result = function()
            found[trainer.state.position.step] = dict(calls - before)
            calls.subtract(calls - before)
            return result

        return counted

    trainer._log = into(logs, trainer._log)  # type: ignore[method-assign]
    trainer._agree = into(others, trainer._agree)  # type: ignore[method-assign]
    trainer.fit()
    return logs, others


def _counting(name: str, function: Any, calls: Counter[str]) -> Any:
    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **named)

    return counted


def test_a_log_is_one_exchange() -> None:
    logs, others = run_ranks(collectives, 2)[0]
    assert logs == {step: {"all_reduce": 1} for step in (3, 6, 9, 12)}
    assert list(others) == list(range(1, 13))
    # to ask whether to stop is one, now and then
    assert all(not calls or calls == {"broadcast": 1} for step, calls in others.items() if 1 < step < 12)


def fingerprints(ranks: Ranks) -> list[Any]:
    """What is told of the data."""
    _, _, reporter = fit(toy_config(scaling__num_workers=ranks.world_size, trainer__max_steps=1), ranks)
    return [details for kind, details in reporter.events if kind == "datasets"]


def test_the_data_are_the_same_whatever_the_number_of_workers() -> None:
    first, second = run_ranks(fingerprints, 2)
    assert first == fingerprints(Ranks.current())
    assert first[0]["training"]["fingerprint"]
    assert second == []
