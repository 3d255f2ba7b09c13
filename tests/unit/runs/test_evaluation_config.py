"""The config that a trained run is evaluated with."""

from pathlib import Path

from paceline.cluster.evaluation_config import ChosenCheckpoint, GivenObjects, evaluation_config
from support.configs import config_of


def test_other_metrics_than_the_monitored_one_may_be_asked_for(tmp_path: Path) -> None:
    config = config_of(
        model={"name": "cnn"},
        data={"name": "mnist5k", "global_batch_size": 8},
        metrics=[{"name": "f1"}],
        checkpoint={"monitor": "val/f1", "mode": "max"},
    )
    chosen = ChosenCheckpoint(str(tmp_path), tmp_path, 1)
    assert evaluation_config(config, chosen, {"metrics": []}, GivenObjects()).metrics == []


def test_a_batch_size_schedule_leaves_the_micro_batch_of_its_first_stage(tmp_path: Path) -> None:
    stages = [{"samples": 0, "global_batch_size": 64}, {"samples": 100, "global_batch_size": 256}]
    config = config_of(model={"name": "cnn"}, data={"name": "mnist5k", "batch_size_schedule": stages})
    found = evaluation_config(config, ChosenCheckpoint(str(tmp_path), tmp_path, 1), {}, GivenObjects())
    assert (found.data.micro_batch_size, found.data.batch_size_schedule) == (64, None)
