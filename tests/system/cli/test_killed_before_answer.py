"""`paceline train` killed between the end of training and its answer: the same command gives the answer."""

import json
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from paceline.cluster.ray_session import connecting_text
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from support.runs.command_process import CommandProcess
from support.runs.killed_at import kill_at, method_at
from support.tracking.killing import read_mlflow
from support.tracking.recording import DEAD

CONFIG = """\
name: tiny
model: {name: mlp, in_features: 8, hidden: [8], num_classes: 4}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 5, log_every_n_steps: 1}
"""
STEPS = 20
PLACES = [
    pytest.param("cluster.run_coordinator:RunCoordinator.finish", marks=pytest.mark.slow),
    "cluster.run_coordinator:RunCoordinator.close",
    pytest.param("cluster.unfinished_runs:ClaimedRun.settle", marks=pytest.mark.slow),
    pytest.param("cluster.run_result:RunResult.to_json", marks=pytest.mark.slow),
    pytest.param("cluster.train_launch:TrainLaunch.conclude", marks=pytest.mark.slow),
]
"""Functions that are called between the end of training and the end of the command, in their order."""
NOTED = "cluster.train_launch:TrainLaunch.note_ending"
IN_PROCESS = ("scaling.num_workers=0", "scaling.use_gpu=false")
ON_RAY = ("scaling.num_workers=1", "scaling.cpus_per_worker=0.5", "scaling.use_gpu=false")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the training that nothing happens to."""
    user = CommandProcess(tmp_path_factory.mktemp("whole"), {"MLFLOW_TRACKING_URI": DEAD})
    (user.folder / "tiny.yaml").write_text(CONFIG)
    user.give("train", "tiny.yaml", "--json", "tracking.offline=allow", *IN_PROCESS)
    try:
        return str(user.result()["weights_sha256"])
    finally:
        user.leave()


@pytest.mark.parametrize("place", PLACES)
def test_the_same_command_answers_without_a_second_run(
    tmp_path: Path, prepared_database: Path, weights: str, place: str
) -> None:
    killed_and_repeated(CommandProcess(tmp_path, {}), prepared_database, weights, place, IN_PROCESS)


def test_each_place_exists() -> None:
    """Also those that only slow tests use."""
    for place in (NOTED, *(getattr(each, "values", (each,))[0] for each in PLACES)):
        assert callable(method_at(place)), place


@pytest.mark.slow
@pytest.mark.ray
def test_the_same_command_answers_without_ray(tmp_path: Path, prepared_database: Path, weights: str) -> None:
    user = CommandProcess(tmp_path, {}, forks=False)
    killed_and_repeated(user, prepared_database, weights, NOTED, ON_RAY)
    assert user.told().count(connecting_text(None)) == 1, "Ray was started again"


def killed_and_repeated(
    user: CommandProcess, database: Path, weights: str, place: str, overrides: tuple[str, ...]
) -> None:
    tmp_path = user.folder
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    shutil.copy(database, tmp_path / "mlflow.db")
    try:
        user.give("train", "tiny.yaml", "--json", *overrides, prepare=partial(kill_at, place))
        assert user.end() == -signal.SIGKILL
        (file,) = (tmp_path / "runs" / "tiny").glob("*/run.json")
        assert json.loads(file.read_text())["status"] == "running"
        user.give("train", "tiny.yaml", "--json", *overrides)
        result = user.result()
    finally:
        user.leave()
    assert (result["run_id"], result["steps"]) == (file.parent.name, STEPS)
    assert result["weights_sha256"] == weights
    assert [each.parent.name for each in (tmp_path / "runs" / "tiny").glob("*/run.json")] == [result["run_id"]]
    assert json.loads(file.read_text())["status"] == "finished"
    mlflow = read_mlflow(f"sqlite:///{tmp_path / 'mlflow.db'}")
    entries = Journal(file.parent / "tracking" / JOURNAL_FILE).read()
    points = [MetricPoint.from_json(entry.content) for entry in entries if entry.kind == "point"]
    assert mlflow.statuses == ["FINISHED"]
    assert Counter(mlflow.points) == Counter(points)
    assert set(Counter((point.key, point.step) for point in mlflow.points).values()) == {1}
    assert sorted(point.step for point in points if point.key == "train/loss") == list(range(1, STEPS + 1))
