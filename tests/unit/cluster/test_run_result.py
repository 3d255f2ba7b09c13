"""The result of a run: its rows, and its best kept checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.run_result import RunResult
from support.cluster.local_runs import local_config

NAN = float("nan")


def result(folder: Path, points: list[tuple[str, float, int]], **overrides: Any) -> RunResult:
    for step in (2, 4, 6):
        (folder / "checkpoints" / f"step-{step}").mkdir(parents=True)
    fixed = {"run_id": "r", "name": "n", "status": "finished", "steps": 6, "samples_per_second": 1.0}
    ends = {"peak_memory_bytes": 1, "wall_seconds": 1.0, "weights_sha256": "", "metrics": {}}
    place = str(folder / "checkpoints" / "step-6")
    config = local_config(**overrides)
    return RunResult(**fixed, **ends, checkpoint=place, config=config, folder=folder, points=tuple(points))  # type: ignore[arg-type]


def test_losses_and_accuracy_are_shown_first_and_stragglers_by_line(tmp_path: Path) -> None:
    metrics = {"rank_seconds/max": 0.2, "val/accuracy": 0.98, "train/loss": 0.05, "val/loss": 0.06, "lr": 0.1}
    metrics["validation_epoch"] = 2.0
    found = replace(result(tmp_path, []), metrics=metrics, straggler="one\ntwo")
    rows = found.rows()
    assert rows[:2] == [("run", "n/r"), ("status", "finished after 6 steps")]
    assert rows[2:5] == [("train/loss", "0.05"), ("val/accuracy", "0.98"), ("val/loss", "0.06")]
    assert not {"lr", "validation_epoch", "rank_seconds/max"} & {label for label, _ in rows}
    assert [text for label, text in rows if label == "straggler"] == ["one", "two"]
    assert found.to_json()["stopped_early"] is None
    early = replace(found, stopped_early="stopped early after 6 of 30 steps by mine.Limit")
    assert early.rows()[1] == ("status", early.stopped_early)
    assert early.to_json()["stopped_early"] == early.stopped_early


@pytest.mark.parametrize(
    ("values", "overrides", "step"),
    [
        ({2: 0.5, 4: 0.9, 6: 0.9}, {}, 4),
        ({2: 0.5, 4: 0.9, 6: 0.9}, {"checkpoint__mode": "min"}, 2),
        ({2: NAN, 3: 0.99, 4: 0.2, 6: 0.1}, {}, 4),
    ],
    ids=["earliest", "mode", "kept"],
)
def test_the_result_names_the_best_kept_checkpoint(
    values: dict[int, float], overrides: dict[str, Any], step: int, tmp_path: Path
) -> None:
    points = [("val/accuracy", value, at) for at, value in values.items()] + [("val/loss", 0.0, 6)]
    found = result(tmp_path, points, checkpoint__monitor="val/accuracy", **overrides)
    place = str(tmp_path / "checkpoints" / f"step-{step}")
    best = {"step": step, "metric": "val/accuracy", "value": values[step], "checkpoint": place}
    assert found.to_json()["best"] == best
    assert [label for label, text in found.rows() if text.endswith(place)][-1] == "best"


@pytest.mark.parametrize("monitor", [None, "val/accuracy"])
def test_a_run_without_a_monitored_value_has_no_best_checkpoint(monitor: str | None, tmp_path: Path) -> None:
    found = result(tmp_path, [("val/loss", 0.0, 6)], checkpoint__monitor=monitor)
    assert found.to_json()["best"] is None
    assert "best" not in dict(found.rows())
