"""A GAN that turns noise into points on a circle: two optimizers in one task."""

import torch
from torch.nn.functional import softplus

from paceline import Task, TaskOutput


class Gan(Task):
    automatic_optimization = False

    def configure_optimizers(self, build):
        return {name: build(part.parameters()) for name, part in self.model.items()}

    def training_step(self, batch, optimizers):
        maker, judge = self.model["maker"], self.model["judge"]
        fake = maker(torch.randn_like(batch[0]))
        judge_loss = (softplus(-judge(batch[0])) + softplus(judge(fake.detach()))).mean()
        judge_loss.backward()
        optimizers["judge"].step()
        maker_loss = softplus(-judge(fake)).mean()
        optimizers["maker"].zero_grad()
        maker_loss.backward()
        optimizers["maker"].step()
        return TaskOutput.from_mean(judge_loss + maker_loss, len(fake))
