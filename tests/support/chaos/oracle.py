"""What must hold when a command has succeeded in spite of everything."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.tracking import mlflow_connection
from paceline.tracking.metric_points import MetricPoint
from support import leaks
from support.chaos.scene import Scene
from support.tracking.killing import DETERMINED

LOCKS = (".sync",)
"""Hidden files that `paceline sync` keeps, which the undisturbed command does not need."""
GRACE_SECONDS = 60.0
"""How long processes of a command that has ended may take to end: those of a killed Ray look for it now and then."""


@dataclass(frozen=True)
class Evidence:
    """What a command has left."""

    weights: dict[str, str]
    """Digest of each run's final weights, by trial; a run by itself has the name "run"."""
    journals: list[list[MetricPoint]]
    """Points of each run; sweeps, which have none, included."""
    mlflow: list[list[MetricPoint]]
    """Points of each run of MLflow that is not deleted."""
    statuses: list[str]
    """Of those."""
    hidden: frozenset[str] = frozenset()
    """Names of hidden files below the folder of the runs: temporary ones among them."""
    rays_files: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Oracle:
    """Compares what a disturbed command has left with the undisturbed one's."""

    expected: Evidence
    duration_seconds: float = field(default=0.0, compare=False)
    """Of the undisturbed command."""

    def complaints(self, found: Evidence) -> dict[str, Any]:
        """Return all that is not as it must be, by what it is."""
        seen: dict[str, Any] = {
            "weights": _different(found.weights, self.expected.weights),
            "runs": len(found.journals) - len(self.expected.journals),
            "MLflow runs": len(found.mlflow) - len(self.expected.mlflow),
            "statuses": [status for status in found.statuses if status != "FINISHED"],
            "twice in a journal": _twice(found.journals),
            "twice in MLflow": _twice(found.mlflow),
            "not as in the journals": _counted(found.journals) != _counted(found.mlflow),
            "metrics": _determined(found.journals) != _determined(self.expected.journals),
            "temporary files": sorted(found.hidden - self.expected.hidden - {*LOCKS}),
            "Ray's files": list(found.rays_files),
            "processes": list(found.processes),
        }
        return {kind: those for kind, those in seen.items() if those}


def collect(scene: Scene, result: dict[str, Any]) -> Evidence:
    """Gather what the commands of a scene have left, once their processes have had time to end."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := scene.tree.processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    processes = tuple(leaks.described(process) for process in left)
    client = mlflow_connection.connect(f"sqlite:///{scene.database}")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    histories = [
        [
            MetricPoint(point.key, point.value, point.step, point.timestamp)
            for key in sorted(run.data.metrics)
            for point in client.get_metric_history(run.info.run_id, key)
        ]
        for run in runs
    ]
    trials = result.get("trials", [{"id": "run", **result}])
    return Evidence(
        {trial["id"]: trial["weights_sha256"] for trial in trials},
        list(scene.journals().values()),
        histories,
        [run.info.status for run in runs],
        frozenset(path.name for path in Path(scene.folder, "runs").rglob(".*")),
        tuple(sorted(path.name for path in scene.rays_folder.iterdir())),
        processes,
    )


def _different(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return sorted(id for id in found.keys() | expected.keys() if found.get(id) != expected.get(id))


def _twice(runs: Iterable[list[MetricPoint]]) -> list[tuple[str, int]]:
    return [
        at for points in runs for at, times in Counter((each.key, each.step) for each in points).items() if times > 1
    ]


def _counted(runs: Iterable[list[MetricPoint]]) -> Counter[frozenset[MetricPoint]]:
    return Counter(frozenset(points) for points in runs)


def _determined(runs: Iterable[list[MetricPoint]]) -> Counter[frozenset[tuple[str, int, float]]]:
    return Counter(frozenset((p.key, p.step, p.value) for p in points if p.key in DETERMINED) for points in runs)
