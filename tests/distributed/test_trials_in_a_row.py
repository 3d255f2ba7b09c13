"""Trials in a row in the same processes train as each would alone in fresh ones, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from paceline.engine import compilation, fresh
from paceline.engine.build import build_trainer
from paceline.engine.failure import RankFailed, failing_together
from paceline.engine.fresh import ProcessState, fresh_process_group
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.techniques import BY_NAME
from support.toys import CLASSES, FEATURES, PointsTask, points, toy_config

BACKENDS = {"compile": "eager", "compile blocks": "aot_eager"}
"""What stands for inductor, which takes long."""
CATALOGUE = (
    "compile",
    "compile blocks",
    "deterministic",
    "matmul high",
    "fsdp",
    "pipeline",
    "powersgd",
    "adascale",
    "checkpoint full",
    "checkpoint selective",
    "channels last",
    "bf16",
    "redundant bias",
    "cache memory",
    "loader",
)


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
        import random

        import numpy as np

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
    """Reads a setting that no trial sets: whoever comes after one that changed it trains on other numbers."""

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


def settings(name: str) -> dict[str, Any]:
    technique = OTHERS[name] if name in OTHERS else BY_NAME[name].overrides
    sets = {"trainer.precision": "32-true", "trainer.epochs": 1, **technique, "scaling.num_workers": 2}
    return {"model.path": model, "data.path": lambda: points(64, 10), **sets}


def trial(name: str, ranks: Ranks) -> tuple[Any, ...]:
    """Train; what can be compared to the bit."""
    reporter = MemoryReporter()
    with _backend(BACKENDS.get(name, "eager")):
        config = toy_config(**{key.replace(".", "__"): value for key, value in settings(name).items()})

        def train() -> str:
            return build_trainer(config, ranks, reporter).fit().weights_sha256

        try:
            ending = failing_together(ranks, train)
        except RankFailed as error:
            ending = f"{error.failure.kind}: {error.failure.reason}"
    return ending, reporter.values("train/loss"), reporter.values("val/loss")


@contextmanager
def _backend(name: str) -> Iterator[None]:
    before, compilation.BACKEND = compilation.BACKEND, name
    try:
        yield
    finally:
        compilation.BACKEND = before


def row(
    ranks: Ranks, names: list[str], after: Callable[[], None] | None = None, knows_flags: bool = True
) -> tuple[list[tuple[Any, ...]], list[dict[str, float]]]:
    """Trials in a row; their results, and what the process held after each."""
    from torch.distributed.distributed_c10d import _get_default_store

    if not knows_flags:
        fresh.FLAGS = []  # in this rank's process, which ends soon
    store, state = _get_default_store(), ProcessState()
    results, seen = [], []
    for number, name in enumerate(names):
        with fresh_process_group(store, f"trial/{number}", ranks.rank, ranks.world_size, "gloo", 60.0):
            results.append(trial(name, Ranks.current()))
        if after is not None:
            after()
        state.restore()
        seen.append(held())
    return results, seen


def held() -> dict[str, float]:
    """What leaks would show in."""
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


@pytest.mark.parametrize("names", [CATALOGUE[:8], CATALOGUE[8:], tuple(OTHERS)[1:]])
def test_a_plain_trial_is_the_same_after_any_other(names: tuple[str, ...], plain: tuple[Any, ...]) -> None:
    order = [each for name in names for each in (name, "plain")]
    results, _ = run_ranks(row, 2, order, timeout=120)[0]
    assert len(plain[1]) == 4
    for name, result in zip(names, results[1::2], strict=True):
        assert result == plain, f"plain after {name}"
    endings = {name: result[0] for name, result in zip(names, results[::2], strict=True)}
    if "raising" in names:
        assert endings["raising"] == "error: LookupError: boom"
        assert endings["diverging"].startswith("diverged: the training loss is")
    else:
        assert all(len(ending) == 64 for ending in endings.values()), endings


SUSPICIOUS = ("compile", "fsdp", "powersgd", "checkpoint selective")


@pytest.mark.slow
def test_a_trial_is_the_same_after_plain_ones() -> None:
    order = [each for name in SUSPICIOUS for each in ("plain", name)]
    results, _ = run_ranks(row, 2, order, timeout=120)[0]
    for name, result in zip(SUSPICIOUS, results[1::2], strict=True):
        assert result == alone(name), f"{name} after plain"


def test_a_flag_that_is_not_put_back_would_be_seen(plain: tuple[Any, ...]) -> None:
    results, _ = run_ranks(row, 2, ["meddling", "plain"], knows_flags=False)[0]
    assert results[1] != plain


CYCLE = ("plain", "fsdp", "powersgd", "loader", "raising", "pipeline")
MOST_GROWTH = 30 << 20
"""Bytes of resident memory that 18 trials may add."""


def growth(early: dict[str, float], late: dict[str, float]) -> dict[str, float]:
    return {name: late[name] - early[name] for name in early}


@pytest.mark.slow
def test_thirty_trials_leave_nothing_behind() -> None:
    for _, seen in run_ranks(row, 2, list(CYCLE) * 5, timeout=240):
        grown = growth(seen[2 * len(CYCLE) - 1], seen[-1])
        assert grown.pop("bytes") < MOST_GROWTH
        assert abs(grown.pop("files")) <= 1, "more than a connection that rank 0's store has yet to close"
        assert set(grown.values()) == {0}, grown


KEPT: list[Any] = []


def leave_behind() -> None:
    """The planted leaks: a tensor, a thread, a file and memory."""
    KEPT.append(torch.ones(3 << 20))  # 12 MiB
    KEPT.append(os.open(os.devnull, os.O_RDONLY))
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()


def test_what_is_left_behind_would_be_seen() -> None:
    _, seen = run_ranks(row, 2, ["plain"] * 6, after=leave_behind)[0]
    grown = growth(seen[1], seen[-1])
    assert (grown["tensors"], grown["threads"], grown["tasks"]) == (4, 4, 4)
    assert grown["files"] >= 3
    assert grown["bytes"] > MOST_GROWTH
