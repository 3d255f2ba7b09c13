"""A fault in a user's callback, metric, schedule or optimizer on one rank: named, quick, and nothing is lost."""

import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest
from torch.nn import functional as F

from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together
from paceline.tasks.base import TaskOutput
from support.ranks import end_ranks, run_ranks
from support.toys import PointsTask, fit, toy_config

NAME = "faulty_parts_of_a_user"
SOURCE = """\
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from paceline import Callback

FAULT = Path(os.environ["USER_FAULT"])


def fail(part, step):
    named, at, rank = FAULT.read_text().split() if FAULT.exists() else ("", 0, 0)
    if named == part and step == int(at) and dist.get_rank() == int(rank):
        FAULT.with_name("raised").write_text(str(time.monotonic()))
        raise LookupError(f"the {part} is broken")


class Watching(Callback):
    def on_step_end(self, ctx):
        fail("callback", ctx.step)


class Accuracy:
    evaluations = 0

    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.samples = 0

    def update(self, predictions, targets):
        self.right += int((predictions == targets).sum())
        self.samples += len(targets)

    def compute(self):
        Accuracy.evaluations += 1
        fail("metric", Accuracy.evaluations)
        return self.right / self.samples


def factor(step, total_steps):
    fail("schedule", step)
    return 1 - step / total_steps


class Momentum(torch.optim.SGD):
    def step(self, closure=None):
        self.taken = getattr(self, "taken", 0) + 1
        fail("optimizer", self.taken)
        return super().step(closure)
"""
"""A user's file with a callback, a metric, a schedule and an optimizer, any of which can fail on one rank."""


class PredictingTask(PointsTask):
    """Gives predictions, which metrics need."""

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, _ = batch
        logits = self.model(features)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return TaskOutput(loss, len(targets), predictions=logits.argmax(dim=1), targets=targets)


class RankEnd(NamedTuple):
    """How a rank ended, and when, by the machine's clock."""

    time: float
    rank: int
    reason: str
    traceback_text: str


def train(ranks: DistContext, folder: Path) -> Any:
    os.environ["USER_FAULT"] = str(folder / "fault")
    sys.path.insert(0, str(folder))
    config = toy_config(
        task__path=PredictingTask,
        optimizer={"path": f"{NAME}:Momentum", "lr": 0.1, "args": {"momentum": 0.9}},
        lr_scheduler={"path": f"{NAME}:factor"},
        metrics=[{"name": "own", "path": f"{NAME}:Accuracy"}],
        callbacks=[{"path": f"{NAME}:Watching"}],
        trainer__evaluate_every_n_steps=3,
        checkpoint__every_n_steps=2,
        scaling__num_workers=ranks.world_size,
    )
    try:
        _, outcome, reporter = failing_together(ranks, lambda: fit(config, ranks, folder / "checkpoints"))
    except RankFailed as error:
        return RankEnd(monotonic(), error.failure.rank, error.failure.reason, error.failure.traceback_text)
    return outcome, [details["step"] for kind, details in reporter.events if kind == "resumed"]


@pytest.mark.parametrize(
    ("part", "at", "line", "rank"),
    [
        ("callback", 5, 'fail("callback", ctx.step)', 1),
        ("metric", 2, 'fail("metric", Accuracy.evaluations)', 1),
        ("schedule", 5, 'fail("schedule", step)', 0),
        ("optimizer", 5, 'fail("optimizer", self.taken)', 0),
    ],
)
def test_a_fault_on_one_rank_is_named_at_once_and_loses_nothing(
    part: str, at: int, line: str, rank: int, tmp_path: Path
) -> None:
    broken, sound = tmp_path / "broken", tmp_path / "sound"
    for folder in (broken, sound):
        folder.mkdir()
        (folder / f"{NAME}.py").write_text(SOURCE)
    (broken / "fault").write_text(f"{part} {at} {rank}")
    endings = end_ranks(train, 2, broken)
    assert [(ending.error, type(ending.value)) for ending in endings] == [(None, RankEnd)] * 2
    raised = float((broken / "raised").read_text())
    # long before a collective operation times out
    assert max(ending.value.time for ending in endings) - raised < toy_config().parallel.timeout_seconds / 2
    place = f'{NAME}.py", line {SOURCE.splitlines().index(_in_source(line)) + 1}'
    for told in (ending.value for ending in endings):
        assert (told.rank, told.reason) == (rank, f"LookupError: the {part} is broken")
        assert place in told.traceback_text
    assert (broken / "checkpoints" / "step-4").is_dir()

    (broken / "fault").unlink()
    (resumed, from_steps), (undisturbed, _) = run_ranks(train, 2, broken)[0], run_ranks(train, 2, sound)[0]
    assert from_steps == [4]
    assert resumed.step == undisturbed.step == 12
    assert resumed.weights_sha256 == undisturbed.weights_sha256
    assert resumed.metrics["val/own"] == undisturbed.metrics["val/own"]


def _in_source(line: str) -> str:
    return next(each for each in SOURCE.splitlines() if each.strip() == line)
