"""A GAN that turns noise into points on a circle, by the hinge loss: two optimizers in one task."""

import torch
from torch.nn import Linear, ModuleDict, ReLU, Sequential
from torch.utils.data import TensorDataset

from paceline import Task, TaskOutput


def net() -> ModuleDict:
    sizes = {"maker": 2, "judge": 1}
    return ModuleDict({name: Sequential(Linear(2, 32), ReLU(), Linear(32, size)) for name, size in sizes.items()})


def data() -> tuple:
    angles = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 2 * torch.pi
    return TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1)), []


class Gan(Task):
    automatic_optimization = False

    def configure_optimizers(self, build):
        return {name: build(part.parameters()) for name, part in self.model.items()}

    def training_step(self, batch, optimizers):
        maker, judge = self.model["maker"], self.model["judge"]
        fake = maker(torch.randn_like(batch[0]))
        judge_loss = ((1 - judge(batch[0])).relu() + (1 + judge(fake.detach())).relu()).mean()
        judge_loss.backward()
        optimizers["judge"].step()
        maker_loss = -judge(fake).mean()
        optimizers["maker"].zero_grad()
        maker_loss.backward()
        optimizers["maker"].step()
        return TaskOutput.from_mean(judge_loss + maker_loss, len(fake))
