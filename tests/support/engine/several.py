"""A task with two optimizers, and the same training written as a bare loop."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.toys import CLASSES, FEATURES, Points, toy_config

STEPS = 9
LR = 0.1


class Pair(nn.Module):
    """Two parts that train against each other, one of whose layers a step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, FEATURES))
        self.judge = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
        self.rare = nn.Linear(FEATURES, CLASSES)


def judge_loss(model: Any, batch: Any) -> torch.Tensor:
    """The judge's loss; few samples use the rare layer, so that a batch may leave it without a gradient."""
    features, targets, ids = batch
    logits = model.judge[2](model.judge[0](features)) + model.judge[2](model.judge[0](model.maker(features).detach()))
    loss = F.cross_entropy(logits, targets)
    chosen = ids % 10 == 0
    if not chosen.any():
        return loss
    return loss + F.cross_entropy(model.rare(features[chosen]), targets[chosen], reduction="sum") / len(targets)


def maker_loss(model: Any, batch: Any) -> torch.Tensor:
    """The maker's loss, with the updated judge."""
    features, targets, _ = batch
    return -F.cross_entropy(model.judge[2](model.judge[0](model.maker(features))), targets)


class PairTask(Task):
    """Both losses in one step."""

    automatic_optimization = False

    def configure_optimizers(self, build: Any) -> Any:
        return {
            "judge": build([*self.model.judge.parameters(), *self.model.rare.parameters()], lr_multiplier=0.5),
            "maker": torch.optim.Adam(self.model.maker.parameters(), lr=0.01),
        }

    def training_step(self, batch: Any, optimizers: Any) -> TaskOutput:
        losses = []
        for name, loss_of in (("judge", judge_loss), ("maker", maker_loss)):
            loss = loss_of(self.model, batch)
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            losses.append(loss)
        self.losses = [loss.detach() for loss in losses]
        return TaskOutput.from_mean(losses[0], len(batch[1]))

    def forward(self, batch: Any) -> TaskOutput:
        return TaskOutput.from_mean(judge_loss(self.model, batch), len(batch[1]))

    def training_metrics(self) -> dict[str, Any]:
        return {"train/maker_loss": self.losses[1]}


def pair_config(**overrides: Any) -> Any:
    """Three epochs of 43 samples in batches of 16, the last of which is short."""
    keys = {
        "task__path": PairTask,
        "model__path": Pair,
        "data__path": lambda: (Points(43), Points(10)),
        "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.9},
        "lr_scheduler": {"name": "linear"},
        "trainer__epochs": 3,
    }
    return toy_config(**{**keys, **overrides})


def bare_loop(config: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of the judge and final weights without Paceline."""
    from paceline.engine.build_task import seed_model
    from paceline.engine.order import DataOrder

    seed_model(config.seed)
    model = Pair().double().train()
    data = config.data.build()[0]
    size = config.data.global_batch_size
    order = DataOrder(len(data), size, size, seed=config.seed)
    judge = [*model.judge.parameters(), *model.rare.parameters()]
    optimizers = [
        (torch.optim.SGD(judge, lr=LR / 2, momentum=0.9), LR / 2, judge_loss),
        (torch.optim.Adam(model.maker.parameters(), lr=0.01), 0.01, maker_loss),
    ]
    losses = []
    for step in range(STEPS):
        ids = order.step_ids(step // 3, step % 3).tolist()
        batch = torch.utils.data.default_collate([data[index] for index in ids])
        for optimizer, lr, loss_of in optimizers:
            loss = loss_of(model, batch)
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - step / STEPS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[::2], model.state_dict()
