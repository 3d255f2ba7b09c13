"""The best kept checkpoint in the result of a run."""

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
