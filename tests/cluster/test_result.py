"""What a run's result shows in a terminal."""

from pathlib import Path
from typing import Any

from paceline.cluster.result import RunResult
from paceline.config.loading import validate

METRICS = {
    "rank_seconds/max": 0.2,
    "rank_seconds/min": 0.1,
    "val/accuracy": 0.98,
    "train/loss": 0.05,
    "val/loss": 0.06,
    "lr": 0.1,
    "validation_epoch": 2.0,
}


def result(**given: Any) -> RunResult:
    data = {"name": "synthetic", "global_batch_size": 8}
    config = validate({"name": "n", "model": {"name": "mlp"}, "data": data})
    fixed = {"run_id": "r", "name": "n", "status": "finished", "steps": 12, "samples_per_second": 1234.5}
    ends = {"peak_memory_bytes": 3 * 2**20, "wall_seconds": 4.0, "checkpoint": "", "weights_sha256": ""}
    return RunResult(**fixed, **ends, metrics=METRICS, config=config, folder=Path(), **given)


def test_losses_and_accuracy_come_first_and_nothing_has_no_unit() -> None:
    rows = result().rows()
    assert rows[:5] == [
        ("run", "n/r"),
        ("status", "finished after 12 steps"),
        ("train/loss", "0.05"),
        ("val/accuracy", "0.98"),
        ("val/loss", "0.06"),
    ]
    assert [label for label, _ in rows[5:]] == ["samples/s", "peak memory", "wall time", "checkpoint"]


def test_workers_that_the_others_waited_for_are_named() -> None:
    slow = ["rank 3 on node7 takes 1.4 times as long (0.2 s against 0.1 s)", "rank 1 on node7 takes 2 times as long"]
    rows = result(straggler="\n".join(slow)).rows()
    assert [text for label, text in rows if label == "straggler"] == slow
