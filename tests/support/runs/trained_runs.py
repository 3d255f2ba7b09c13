"""Short trainings in this process, recorded in a real MLflow store, for what is done with runs afterwards."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import RunResult, train
from paceline.cluster.listener import SilentListener
from paceline.config.experiment import ExperimentConfig, validate
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.sweep_folder import SweepFolder, claim_sweep
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial

IMAGES = {"name": "synthetic", "shape": [1, 8, 8], "num_samples": 64, "num_validation_samples": 16}
CNN = {"model": {"name": "cnn", "in_channels": 1, "width": 4}, "data": {**IMAGES, "global_batch_size": 32}}


def config(home: Path, name: str, **sections: Any) -> ExperimentConfig:
    """A config of three epochs in this process, with everything below `home`."""
    tree = {
        "name": name,
        "optimizer": {"name": "sgd", "lr": 0.01},
        "scaling": {"num_workers": 0},
        "storage": {"path": str(home / "runs")},
        "tracking": {"uri": f"sqlite:///{home / 'mlflow.db'}"},
        "trainer": {"epochs": 3},
    }
    return validate({**tree, **sections})


def trained(home: Path, name: str, **sections: Any) -> RunResult:
    """Train it."""
    return train(config(home, name, **sections), listener=SilentListener())


def extended(home: Path, storage: str | None = None, **changes: Any) -> RunResult:
    """Train for two epochs, then two more; the first evaluation stays the best one by far.

    Args:
        storage: in place of a folder below `home`.
        changes: of the second training.
    """
    checkpoint = {"monitor": "val/loss", "mode": "max", "keep_best": 1, "keep": 1}
    run = config(
        home, "further", **CNN, trainer={"epochs": 2}, checkpoint=checkpoint, optimizer={"name": "sgd", "lr": 0.1}
    ).with_overrides({"storage.path": storage or str(home / "runs")})
    assert train(run, listener=SilentListener()).steps == 4
    longer = run.with_overrides({"trainer.epochs": 4, **changes})
    return train(longer, listener=SilentListener(), extend=True)


def swept(home: Path, name: str, lrs: Mapping[str, float], **sections: Any) -> SweepFolder:
    """A finished sweep over learning rates, as a launch leaves it behind; each trial has been trained as a run.

    Args:
        lrs: learning rate by trial.
    """
    sweep = {"space": {"optimizer.lr": list(lrs.values())}, "metric": "val/loss"}
    whole = config(home, name, **sections, sweep=sweep)
    claimed = claim_sweep(whole, home / "runs", intent="new")
    folder, log = claimed.folder, SweepLog(claimed.folder.path)
    for number, lr in lrs.items():
        overrides = {"optimizer.lr": lr}
        own = trial_config(whole, overrides).with_overrides({"name": f"{name}-{number}"})
        result = train(own, listener=SilentListener())
        (folder.trials / number).mkdir(parents=True)
        for room in ("checkpoints", "tracking"):
            shutil.move(result.folder / room, folder.trials / number / room)
        ended = Trial(
            number, overrides, "finished", metrics=result.metrics, steps=result.steps, checkpoint="moved away"
        )
        log.append([trial_entry(ended)])
    log.close()
    folder.write(status="finished")
    claimed.release()
    return folder
