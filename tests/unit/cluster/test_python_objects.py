"""Python objects of every kind, given to `train` in place of names."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from paceline.callbacks.callback import Callback, Control, TrainContext
from paceline.cluster.listener import SilentListener
from paceline.cluster.train import train
from support.cluster.local_runs import local_config
from support.toys import tensors


class Keeping(Callback):
    """Keeps the metrics of each evaluation, and stops at the second one."""

    def __init__(self) -> None:
        self.found: list[Mapping[str, float]] = []

    def on_evaluation_end(self, ctx: TrainContext, metrics: Mapping[str, float]) -> Control:
        self.found.append(metrics)
        return Control.STOP if len(self.found) == 2 else Control.CONTINUE


class Share:
    """Share of the largest class among the predictions."""

    def __init__(self) -> None:
        self.counts = torch.zeros(3)

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.counts += torch.bincount(predictions, minlength=3)

    def compute(self) -> torch.Tensor:
        return self.counts.max() / self.counts.sum()

    def reset(self) -> None:
        self.counts.zero_()


def falling(step: int, total_steps: int) -> float:
    return 1 - step / total_steps


@pytest.mark.usefixtures("work")
def test_objects_of_every_kind_train() -> None:
    train_set, validation = tensors(40)
    keeping = Keeping()
    result: Any = train(
        local_config(data__global_batch_size=8, trainer__epochs=4, optimizer={"name": "sgd", "lr": 0.1}),
        model=lambda: torch.nn.Linear(6, 3),
        data={"train": train_set, "validation": {"near": validation, "far": validation}},
        optimizer=torch.optim.RAdam,
        lr_scheduler=falling,
        metrics={"share": Share},
        callbacks=[keeping],
        listener=SilentListener(),
    )
    assert (result.status, result.steps) == ("finished", 10)
    assert len(keeping.found) == 2
    assert {"val/near/share", "val/far/share"} <= keeping.found[0].keys()
    assert result.metrics["lr"] == pytest.approx(0.1 * (1 - 9 / 20))
