"""Trials in a row in the same processes train as each would alone in fresh ones, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from paceline.engine import compilation
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together
from paceline.engine.fresh import ProcessState, fresh_process_group
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.techniques import BY_NAME
from support.toys import CLASSES, FEATURES, PointsTask, points, toy_config

BACKENDS = {"compile": "eager", "compile blocks": "aot_eager"}
"""Instead of inductor, which takes long."""
QUICK = (
    "deterministic",
    "matmul high",
    "fsdp",
    "pipeline",
    "powersgd",
    "checkpoint selective",
    "channels last",
    "bf16",
)
LONG = ("compile", "compile blocks", "adascale", "checkpoint full", "redundant bias", "cache memory", "loader")


def model() -> nn.Module:
    """Blocks with BatchNorm and dropout, and a bias that does nothing."""
    width = 8
    stem = nn.Sequential(nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.Dropout(0.2))
    blocks = (nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))
    return nn.Sequential(stem, nn.Sequential(*blocks), nn.Linear(width, CLASSES))


class Raising(PointsTask):
    """Fails at its third step, on all ranks."""

    def forward(self, batch: Any) -> Any:
        if len(self.seen) == 3:
            raise LookupError("boom")
        return super().forward(batch)


class Diverging(PointsTask):
    """Its third loss is not a number."""

    def forward(self, batch: Any) -> Any:
        output = super().forward(batch)
        return replace(output, loss_sum=output.loss_sum * float("nan")) if len(self.seen) == 3 else output


class Meddling(PointsTask):
    """Changes whatever it can of the process."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.set_flush_denormal(True)
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.manual_seed(7), np.random.seed(7), random.seed(7)
        os.environ["PACELINE_SOMETHING"] = "1"
        os.chdir(os.sep)
        self.hook = nn.modules.module.register_module_forward_hook(_double)


def _double(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output * 2 if isinstance(module, nn.Linear) else None


class Flagging(PointsTask):
    """Reads a setting that no trial sets: after one that changed it, it trains on other numbers."""

    def forward(self, batch: Any) -> Any:
        features, targets, ids = batch
        extra = torch.tensor([0.5]).double() * ("PACELINE_SOMETHING" in os.environ)
        extra = extra + (torch.tensor([0.1]).dtype == torch.float64) + (torch.get_num_threads() != 1)
        return super().forward((features + extra, targets, ids))


OTHERS: dict[str, dict[str, Any]] = {
    "plain": {"task.path": Flagging},
    "raising": {"task.path": Raising},
    "diverging": {"task.path": Diverging},
    "meddling": {"task.path": Meddling},
}


def trial(name: str, ranks: DistContext) -> tuple[Any, ...]:
    """Train; the results that can be compared to the bit."""
    technique = OTHERS[name] if name in OTHERS else BY_NAME[name].overrides
    sets = {"trainer.precision": "32-true", "trainer.epochs": 1, **technique, "scaling.num_workers": 2}
    settings = {"model.path": model, "data.path": lambda: points(64, 10), **sets}
    reporter = MemoryReporter()
    with _backend(BACKENDS.get(name, "eager")):
        config = toy_config(**{key.replace(".", "__"): value for key, value in settings.items()})

        def train() -> str:
            return build_trainer(config, ranks, reporter).fit().weights_sha256

        try:
            ending = failing_together(ranks, train)
        except RankFailed as error:
            ending = error.failure.kind
    return ending, reporter.values("train/loss"), reporter.values("val/loss")


@contextmanager
def _backend(name: str) -> Iterator[None]:
    before, compilation.BACKEND = compilation.BACKEND, name
    try:
        yield
    finally:
        compilation.BACKEND = before


def row(
    ranks: DistContext, names: list[str], restores: bool = True
) -> tuple[list[tuple[Any, ...]], list[dict[str, float]]]:
    """Trials in a row; their results, and what the process held after each."""
    from paceline._compat.torch import default_store

    store, state = default_store(), ProcessState()
    results, seen = [], []
    for number, name in enumerate(names):
        with fresh_process_group(store, f"trial/{number}", ranks.rank, ranks.world_size, "gloo", 60.0):
            results.append(trial(name, DistContext.current()))
        if restores:
            state.restore()
        seen.append(held())
    return results, seen


def held() -> dict[str, float]:
    """Where leaks would show."""
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)]
    return {
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "processes": len(psutil.Process().children()),
        "tensors": len(tensors),
        "bytes": psutil.Process().memory_info().rss,
    }


def alone(name: str) -> tuple[Any, ...]:
    """The result of a trial in processes of its own."""
    return run_ranks(row, 2, [name])[0][0][0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plain() -> tuple[Any, ...]:
    return alone("plain")


@pytest.mark.parametrize("names", [(*QUICK, *tuple(OTHERS)[1:]), pytest.param(LONG, marks=pytest.mark.slow)])
def test_a_plain_trial_is_the_same_after_any_other(names: tuple[str, ...], plain: tuple[Any, ...]) -> None:
    order = [each for name in names for each in (name, "plain")]
    results, _ = run_ranks(row, 2, order)[0]
    assert len(plain[1]) == 4
    for name, result in zip(names, results[1::2], strict=True):
        assert result == plain, f"plain after {name}"
    failures = {"raising": "error", "diverging": "diverged"}
    for name, (ending, *_) in zip(names, results[::2], strict=True):
        assert ending == failures.get(name, ending)
        assert (name in failures) == (len(ending) < 64), name


def test_a_process_that_is_not_restored_would_be_seen(plain: tuple[Any, ...]) -> None:
    results, _ = run_ranks(row, 2, ["meddling", "plain"], restores=False)[0]
    assert results[1] != plain


SUSPICIOUS = ("compile", "fsdp", "powersgd", "checkpoint selective")


@pytest.mark.slow
def test_a_trial_is_the_same_after_plain_ones() -> None:
    order = [each for name in SUSPICIOUS for each in ("plain", name)]
    results, _ = run_ranks(row, 2, order)[0]
    for name, result in zip(SUSPICIOUS, results[1::2], strict=True):
        assert result == alone(name), f"{name} after plain"


CYCLE = ("plain", "raising", "powersgd")
LONG_CYCLE = (*CYCLE, "fsdp", "loader", "pipeline")
MOST_GROWTH = 30 << 20
"""Bytes of resident memory that the trials after the first cycles may add."""


@pytest.mark.parametrize(("cycle", "times"), [(CYCLE, 3), pytest.param(LONG_CYCLE, 5, marks=pytest.mark.slow)])
def test_trials_leave_nothing_behind(cycle: tuple[str, ...], times: int) -> None:
    for _, seen in run_ranks(row, 2, list(cycle) * times, timeout=240):
        early, late = seen[2 * len(cycle) - 1], seen[-1]
        grown = {name: late[name] - early[name] for name in early}
        assert grown.pop("bytes") < MOST_GROWTH
        assert abs(grown.pop("files")) <= 1, "more than a connection that rank 0's store has yet to close"
        assert set(grown.values()) == {0}, grown
