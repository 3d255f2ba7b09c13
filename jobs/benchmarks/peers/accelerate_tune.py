"""The sweep with Accelerate in Ray Train's workers, and Ray Tune. peers.py runs it and explains it.

python accelerate_tune.py TRACKING_URI FOLDER BATCH_SIZE...
"""

import os
import sys
import tempfile

import mlflow
import ray
import torch
from accelerate import Accelerator
from digits import datasets, net
from probe import note_step  # measured
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from torch.nn import functional as F
from torch.utils.data import DataLoader


def evaluate(accelerator, model, loader):
    model.eval()
    right = []
    for inputs, targets in loader:
        with torch.no_grad():
            predictions = model(inputs).argmax(1)
        predictions, targets = accelerator.gather_for_metrics((predictions, targets))
        right.append(predictions == targets)
    return torch.cat(right).float().mean().item()


def train_loop(config):
    mlflow.set_tracking_uri(config["uri"])
    accelerator = Accelerator(cpu=True, log_with="mlflow")
    hyperparameters = {"batch_size": config["batch_size"], "lr": config["lr"]}
    accelerator.init_trackers("digits", hyperparameters, init_kwargs={"mlflow": {"run_id": config["run_id"]}})
    training, validation = datasets()
    model = net()
    model, optimizer, training_loader, validation_loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9),
        DataLoader(training, config["batch_size"] // accelerator.num_processes, shuffle=True),
        DataLoader(validation, 500),
    )
    first_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            accelerator.load_state(folder)
            with open(os.path.join(folder, "epoch")) as file:
                first_epoch = int(file.read()) + 1
    step = first_epoch * len(training_loader)
    for epoch in range(first_epoch, 3):
        training_loader.set_epoch(epoch)
        model.train()
        for inputs, targets in training_loader:
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            note_step(config["batch_size"], config["lr"], step)  # measured
            accelerator.log({"train/loss": loss.item()}, step=step)
        accuracy = evaluate(accelerator, model, validation_loader)
        accelerator.log({"val/accuracy": accuracy}, step=step)
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            if accelerator.is_main_process:
                with open(os.path.join(folder, "epoch"), "w") as file:
                    file.write(str(epoch))
            train.report({"val/accuracy": accuracy}, checkpoint=train.Checkpoint.from_directory(folder))
    accelerator.end_training()


def run_trial(config):
    name = tune.get_context().get_trial_id()
    run = mlflow.MlflowClient(config["uri"]).create_run(config["experiment_id"], run_name=name)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={**config, "run_id": run.info.run_id},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.9}),
        run_config=train.RunConfig(
            name=name,
            storage_path=config["folder"],
            callbacks=[TuneReportCallback()],
            failure_config=train.FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    uri, folder, *batch_sizes = sys.argv[1:]
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.set_experiment("digits")
    ray.init(address="local")
    tuner = tune.Tuner(
        tune.with_resources(run_trial, {"CPU": 0.01}),
        param_space={
            "batch_size": tune.grid_search([int(each) for each in batch_sizes]),
            "lr": tune.grid_search([0.05, 0.1]),
            "uri": uri,
            "experiment_id": experiment.experiment_id,
            "folder": folder + "/train",
        },
        tune_config=tune.TuneConfig(metric="val/accuracy", mode="max", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="tune", storage_path=folder, failure_config=tune.FailureConfig(max_failures=3)),
    )
    results = tuner.fit()
    print(results.get_best_result().config)
