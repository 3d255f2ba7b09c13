"""The sweep with Ray Train and Ray Tune only. peers.py runs it and explains it.

python ray_train_tune.py TRACKING_URI FOLDER BATCH_SIZE...
"""

import os
import sys
import tempfile

import mlflow
import ray
import torch
from digits import datasets, net
from probe import note_step  # measured
from ray import train, tune
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback
from torch.nn import functional as F
from torch.utils.data import DataLoader


def evaluate(model, loader):
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in loader:
            right += torch.tensor([(model(inputs).argmax(1) == targets).sum(), len(targets)])
    torch.distributed.all_reduce(right)
    return (right[0] / right[1]).item()


def train_loop(config):
    is_main = train.get_context().get_world_rank() == 0
    if is_main:
        mlflow.set_tracking_uri(config["uri"])
        mlflow.start_run(run_id=config["run_id"])
        mlflow.log_params({"batch_size": config["batch_size"], "lr": config["lr"]})
    training, validation = datasets()
    batch_size = config["batch_size"] // train.get_context().get_world_size()
    training_loader = prepare_data_loader(DataLoader(training, batch_size, shuffle=True))
    validation_loader = prepare_data_loader(DataLoader(validation, 500))
    model = prepare_model(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    first_epoch = step = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, step = state["epoch"] + 1, state["step"]
    for epoch in range(first_epoch, 3):
        training_loader.sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in training_loader:
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            note_step(config["batch_size"], config["lr"], step)  # measured
            if is_main:
                mlflow.log_metric("train/loss", loss.item(), step=step)
        accuracy = evaluate(model, validation_loader)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if is_main:
                mlflow.log_metric("val/accuracy", accuracy, step=step)
                weights, moments = model.module.state_dict(), optimizer.state_dict()
                state = {"model": weights, "optimizer": moments, "epoch": epoch, "step": step}
                torch.save(state, os.path.join(folder, "state.pt"))
                checkpoint = train.Checkpoint.from_directory(folder)
            train.report({"val/accuracy": accuracy}, checkpoint=checkpoint)
    if is_main:
        mlflow.end_run()


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
