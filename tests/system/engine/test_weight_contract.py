"""The first step's checks on several ranks."""

from dataclasses import replace
from typing import Any

from paceline.engine.dist_context import DistContext
from paceline.errors import UnusableCode
from paceline.tasks.base import TaskOutput
from support.ranks import run_ranks
from support.toys import PointsTask, fit, toy_config


class MeanTask(PointsTask):
    """Passes the mean where the sum is due."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return replace(output, loss_sum=output.loss_sum / len(batch[1]))


class HalvedWeight(PointsTask):
    """Its weight is not the number of samples, in evaluation neither."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return replace(output, weight=len(batch[1]) / 2)


def codes(ranks: DistContext) -> list[str]:
    """What each task ends with; fsdp's forward pass is a collective operation, so that only weights are checked."""
    found = []
    for task, strategy in ((MeanTask, "ddp"), (HalvedWeight, "ddp"), (HalvedWeight, "fsdp")):
        config = toy_config(
            task__path=task,
            parallel__strategy=strategy,
            scaling__num_workers=2,
            trainer__precision="32-true",
            trainer__max_steps=1,
        )
        try:
            fit(config, ranks)
        except UnusableCode as error:
            found.append(error.code)
    return found


def test_each_rank_finds_a_broken_contract() -> None:
    expected = ["mean-not-sum", "weight-not-samples", "weight-not-samples"]
    assert run_ranks(codes, 2) == [expected, expected]
