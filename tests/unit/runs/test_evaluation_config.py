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
