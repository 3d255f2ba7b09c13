"""`paceline sweep` as a program of its own: its driver is killed, its exit code is read. Slow: run with `-m slow`."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.sweeps.sweep_log import read_log
from support.cluster.job_cluster import wait_until
from support.cluster.user_folder import enter_user_folder

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture
def sweep_file(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six trials of two workers, in which each step takes a moment."""
    tree = {
        "name": "killed",
        "model": {"path": "own_code:net"},
        "task": {"path": "own_code:OwnTask", "args": {"pause": 0.4}},  # longer than Ray outlives a killed driver
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": 4, "log_every_n_steps": 1},
        "scaling": {"num_workers": 2, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
        "sweep": {"space": {"optimizer.lr": [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]}, "slots": 1},
    }
    file = enter_user_folder(tmp_path, prepared_database, monkeypatch) / "killed.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def start(sweep_file: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "paceline", "sweep", sweep_file.name, "--json", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=sweep_file.parent, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]


def finish(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any]]:
    out, errors = process.communicate(timeout=400)
    assert out.startswith("{"), errors
    return process.returncode, json.loads(out)


def sweeps(sweep_file: Path) -> list[Path]:
    return [path.parent for path in sweep_file.parent.glob("runs/killed/*/sweep.json")]


def points_in_mlflow(home: Path) -> dict[str, list[int]]:
    """By trial, the steps of its training loss; of the one sweep that there is."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    runs = list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))
    (parent,) = [run for run in runs if run.data.tags["paceline.kind"] == "sweep"]
    assert parent.info.status == "FINISHED"
    trials = {run.data.tags["paceline.trial_id"]: run for run in runs if run is not parent}
    assert {run.info.status for run in trials.values()} == {"FINISHED"}
    points = {id: client.get_metric_history(run.info.run_id, "train/loss") for id, run in trials.items()}
    return {id: [point.step for point in steps] for id, steps in points.items()}


def test_a_killed_driver_changes_nothing(sweep_file: Path) -> None:
    """Killed in the third trial; the same command resumes, and gives what an undisturbed sweep gives."""
    first = start(sweep_file)
    wait_until(lambda: any(len(read_log(folder).ended) >= 2 for folder in sweeps(sweep_file)), 200)
    (folder,) = sweeps(sweep_file)
    wait_until(lambda: any((folder / "trials" / "0002" / "checkpoints").glob("step-*")), 200)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    # at once, while Ray's processes are still there: the coordinator and the workers live for some seconds more
    code, result = finish(start(sweep_file, "--resume"))
    assert code == 0
    assert sweeps(sweep_file) == [folder]
    history = read_log(folder)
    assert [trial["state"] for trial in result["trials"]] == ["finished"] * 6
    assert [history.trials[f"{number:04d}"].attempts for number in range(6)] == [1, 1, 2, 1, 1, 1]
    assert points_in_mlflow(sweep_file.parent) == {f"{number:04d}": list(range(1, 25)) for number in range(6)}
    (sweep_file.parent / "mlflow.db").rename(sweep_file.parent / "killed.db")
    code, undisturbed = finish(start(sweep_file, "name=undisturbed", "task.args={}", "sweep.slots=2"))
    assert code == 0
    for one, other in zip(result["trials"], undisturbed["trials"], strict=True):
        assert one["weights_sha256"] == other["weights_sha256"]
        assert one["metrics"]["val/loss"] == other["metrics"]["val/loss"]
    assert result["best"]["id"] == undisturbed["best"]["id"]
    best = Path(result["best_config_path"])
    command = [sys.executable, "-m", "paceline", "train", str(best), "--json"]
    done = subprocess.run(command, cwd=sweep_file.parent, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout)["weights_sha256"] == result["best"]["weights_sha256"], done.stderr
