"""The smallest stock Ray Train script: two DDP workers on a private Ray. startup.py measures it in an empty folder."""

import os
import time

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

FOLDER = os.getcwd()


def train_loop() -> None:
    model = prepare_model(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        with open(f"{FOLDER}/first_step", "w") as file:
            file.write(str(time.time()))


if __name__ == "__main__":
    ray.init(address="local", logging_level="ERROR")
    scaling, run = ScalingConfig(num_workers=2), RunConfig(storage_path=FOLDER)
    TorchTrainer(train_loop, scaling_config=scaling, run_config=run).fit()
