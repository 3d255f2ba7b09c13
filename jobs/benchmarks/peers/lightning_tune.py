"""The sweep with Lightning in Ray Train's workers, and Ray Tune. peers.py runs it and explains it.

python lightning_tune.py TRACKING_URI FOLDER BATCH_SIZE...
"""

import os
import sys

import lightning.pytorch as pl
import mlflow
import ray
import torch
from digits import datasets, net
from lightning.pytorch.loggers import MLFlowLogger
from probe import note_step  # measured
from ray import train, tune
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Digits(pl.LightningModule):
    def __init__(self, batch_size, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = net()

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = F.cross_entropy(self.net(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def on_train_batch_end(self, *args):  # measured
        note_step(self.hparams.batch_size, self.hparams.lr, self.global_step)  # measured

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        accuracy = (self.net(inputs).argmax(1) == targets).float().mean()
        self.log("val/accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


def train_loop(config):
    training, validation = datasets()
    batch_size = config["batch_size"] // train.get_context().get_world_size()
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        logger=MLFlowLogger(tracking_uri=config["uri"], run_id=config["run_id"]),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer = prepare_trainer(trainer)
    model = Digits(config["batch_size"], config["lr"])
    loaders = DataLoader(training, batch_size, shuffle=True), DataLoader(validation, 500)
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            path = os.path.join(folder, RayTrainReportCallback.CHECKPOINT_NAME)
            trainer.fit(model, *loaders, ckpt_path=path)
    else:
        trainer.fit(model, *loaders)


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
