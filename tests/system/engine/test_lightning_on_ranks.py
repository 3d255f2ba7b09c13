"""LightningTask on several ranks: metrics over all samples, each once."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paceline.adapters import LightningTask
from paceline.engine.dist_context import DistContext
from support.ranks import run_ranks
from support.toys import Points, fit, net, toy_config

lightning = pytest.importorskip("lightning")


class Lit(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.net = net()
        self.acc = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.net(batch[0])
        self.acc(logits, batch[1])
        self.log("val_acc", self.acc)
        self.log("val_mean", (logits.argmax(1) == batch[1]).double().mean())
        self.log("val_loss", F.cross_entropy(logits, batch[1]))


def evaluated(ranks: DistContext) -> tuple[dict[str, float], list[float]]:
    config = toy_config(
        task__path=LightningTask,
        model__path=Lit,
        data__path=lambda: (Points(43), Points(17)),
        scaling__num_workers=ranks.world_size,
    )
    _, outcome, reporter = fit(config, ranks)
    metrics = {name: value for name, value in outcome.metrics.items() if name.startswith("val/")}
    return metrics, reporter.values("train/loss")


def test_padding_of_the_last_batches_does_not_count() -> None:
    """17 samples are batches of 8 and 1 on rank 0, and one of 8 and padding on rank 1."""
    (alone, expected), (metrics, losses) = evaluated(DistContext.current()), run_ranks(evaluated, 2)[0]
    assert metrics == pytest.approx(alone, rel=1e-6)
    assert losses == pytest.approx(expected, rel=1e-12)
    assert alone["val/acc"] == pytest.approx(alone["val/mean"], rel=1e-6)
