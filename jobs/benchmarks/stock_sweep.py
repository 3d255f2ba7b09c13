"""A sweep by the pattern of Ray's documentation: Ray Tune with a driver function for each trial, which runs a
TorchTrainer with a TuneReportCallback. sweep_overhead.py measures it, in an empty folder with an MLflow store.

    python stock_sweep.py TRIALS
"""

import json
import os
import sys
import tempfile
import time
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray import tune
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Config = dict[str, Any]


def note(config: Config, event: str) -> None:
    with open(config["folder"] + "/moments", "a") as file:
        print(json.dumps([event, time.time()]), file=file)


def batches(samples: int, shuffle: bool) -> Any:
    dataset = TensorDataset(torch.randn(samples, 8), torch.randint(0, 4, (samples,)))
    return prepare_data_loader(DataLoader(dataset, batch_size=16, shuffle=shuffle))


def evaluate(model: Any, loader: Any) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        pairs = [(model(inputs), targets) for inputs, targets in loader]
    losses = [F.cross_entropy(*pair).item() for pair in pairs]
    right = [(outputs.argmax(1) == targets).float().mean().item() for outputs, targets in pairs]
    return {"val/loss": sum(losses) / len(losses), "val/accuracy": sum(right) / len(right)}


def train_loop(config: Config) -> None:
    is_first = ray.train.get_context().get_world_rank() == 0
    if is_first:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        client = MlflowClient("sqlite:///" + config["folder"] + "/mlflow.db")
        experiment = client.get_experiment_by_name("overhead").experiment_id
        run = client.create_run(experiment).info.run_id
        client.log_batch(run, params=[Param(key, str(value)) for key, value in config.items()])
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    training, validation = batches(320, True), batches(32, False)
    metrics = []
    for step, (inputs, targets) in enumerate(training, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if is_first:
            metrics.append(("train/loss", loss.item(), step))
            if step == 1:
                note(config, "first step")
    values = evaluate(model, validation)
    with tempfile.TemporaryDirectory() as folder:
        if is_first:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, folder + "/state.pt")
            metrics += [(key, value, step) for key, value in values.items()]
            now = int(time.time() * 1000)
            client.log_batch(run, metrics=[Metric(key, value, now, at) for key, value, at in metrics])
            client.set_terminated(run)
        ray.train.report(values, checkpoint=Checkpoint.from_directory(folder) if is_first else None)


def drive(config: Config) -> None:
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=config,
        # a little less than a core, since Tune takes a hundredth of one for this function
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.9}),
        run_config=RunConfig(
            name="train-" + tune.get_context().get_trial_id(),
            storage_path=config["folder"] + "/train",
            callbacks=[TuneReportCallback()],
        ),
    )
    trainer.fit()
    note(config, "end")


if __name__ == "__main__":
    ray.init(address="local", logging_level="ERROR")
    trials, folder = int(sys.argv[1]), os.getcwd()
    tuner = tune.Tuner(
        tune.with_resources(drive, {"CPU": 0.01}),
        param_space={"lr": tune.grid_search([0.01 * (1 + each) for each in range(trials)]), "folder": folder},
        tune_config=tune.TuneConfig(metric="val/loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="tune", storage_path=folder + "/tune"),
    )
    results = tuner.fit()
    sys.exit(f"{results.errors}" if results.errors else 0)
