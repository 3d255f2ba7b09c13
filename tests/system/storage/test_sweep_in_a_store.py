"""A sweep in an object store: its driver is killed, and an empty machine resumes it. Slow: run with `-m slow`."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline import load_run, load_sweep
from paceline.cli import run as command
from paceline.runs.export import export
from paceline.runs.finding import find_run
from paceline.runs.listing import list_runs
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_record import joined
from paceline.sweeps.coordinator.coordinator import SweepCoordinator
from paceline.tracking import mlflow_connection as mlflow
from support.storage.relay import Relay
from support.storage.server import CREDENTIALS
from support.storage.sweeping import NAME, STEPS, Sweeping, log_in, steps_in, sweep_of, whole_steps

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

COORDINATOR = f"ray::{SweepCoordinator.__name__}"
"""Title of its process."""
IDS = ["0000", "0001", "0002", "0003"]


@pytest.fixture
def uri(tmp_path: Path, prepared_database: Path) -> str:
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def sweeping(tmp_path: Path, remote: RemoteFolder, environment: dict[str, str], uri: str) -> Iterator[Sweeping]:
    made = Sweeping(tmp_path / "work", str(remote.address), {**environment, "MLFLOW_TRACKING_URI": uri})
    yield made
    made.go_on()
    made.leave()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> dict[str, Any]:
    """The result of the same sweep in a folder, to which nothing happened."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(prepared_database, folder / "mlflow.db")
    variables = {**CREDENTIALS, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    return Sweeping(folder, str(folder / "runs"), variables).run()


def weights_of(result: dict[str, Any]) -> dict[str, str]:
    return {trial["id"]: trial["weights_sha256"] for trial in result["trials"]}


def steps_in_mlflow(uri: str) -> dict[str, Counter[int]]:
    """By trial, how often MLflow has a training loss, by step; each trial has one run."""
    client = mlflow.connect(uri)
    experiment = client.get_experiment_by_name(NAME)
    assert experiment is not None
    runs = [run for run in client.search_runs([experiment.experiment_id]) if "paceline.trial_id" in run.data.tags]
    ids = [run.data.tags["paceline.trial_id"] for run in runs]
    assert sorted(ids) == IDS
    histories = [client.get_metric_history(run.info.run_id, "train/loss") for run in runs]
    return {id: Counter(point.step for point in history) for id, history in zip(ids, histories, strict=True)}


def test_a_killed_driver_is_followed_by_one_with_an_empty_cache(
    sweeping: Sweeping,
    remote: RemoteFolder,
    relay: Relay,
    undisturbed: dict[str, Any],
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeping.start_and_wait_before(STEPS + 6)
    sweeping.until(lambda: whole_steps(remote, "0001") == [4])
    assert log_in(remote)["0000"]["state"] == "finished"
    sweeping.kill()
    sweeping.go_on()
    sweeping.forget()
    relay.forget()
    result = sweeping.run("--resume")
    assert weights_of(result) == weights_of(undisturbed)
    assert [trial["state"] for trial in result["trials"]] == ["finished"] * 4
    log = log_in(remote)
    assert {id: trial["attempts"] for id, trial in log.items()} == {"0000": 1, "0001": 2, "0002": 1, "0003": 1}
    assert log["0003"]["checkpoint"] == f"{sweep_of(remote).address}/trials/0003/checkpoints/step-8"
    brought = [each.split("trials/")[1] for each in relay.seen("GET .*/model.safetensors")]
    assert brought == ["0001/checkpoints/step-4/model.safetensors"]
    once = Counter(range(1, STEPS + 1))
    assert {id: steps_in(remote, id) for id in IDS} == dict.fromkeys(IDS, once)
    assert steps_in_mlflow(uri) == dict.fromkeys(IDS, once)
    assert json.loads(sweep_of(remote).read("sweep.json") or b"{}")["status"] == "finished"
    assert (remote / NAME).read(".lease.json") is None

    # looked at from a third machine
    monkeypatch.chdir(sweeping.folder)
    monkeypatch.syspath_prepend(str(sweeping.folder))
    address = str(sweep_of(remote).address)
    look_at(address, result, remote, tmp_path)
    assert command(["sync", address, "--uri", uri]) == 0
    assert steps_in_mlflow(uri) == dict.fromkeys(IDS, once)


def look_at(address: str, result: dict[str, Any], remote: RemoteFolder, tmp_path: Path) -> None:
    """Open the sweep and its trials by their addresses."""
    found = load_sweep(address)
    assert (found.sweep_id, found.status) == (result["sweep_id"], "finished")
    assert {trial.id: trial.weights_sha256 for trial in found.trials} == weights_of(result)
    assert found.best is not None
    assert len(found.load_model().state_dict()) == 2
    (listed,) = list_runs(storage=str(remote.address))
    assert (listed.kind, listed.id, listed.status) == ("sweep", result["sweep_id"], "finished")
    trial = load_run(f"{address}/trials/{found.best.id}")
    assert trial.weights_sha256 == found.best.weights_sha256
    assert trial.checkpoint == found.best.checkpoint
    assert [step for key, _, step in trial.points if key == "train/loss"] == list(range(1, STEPS + 1))
    metrics = trial.evaluate(overrides={"scaling.num_workers": 0})
    assert metrics["val/loss"] == found.best.metrics["val/loss"]
    exported = export(address, output=tmp_path / "exported")
    assert exported.run.id == found.best.id
    assert exported.step == STEPS
    assert find_run(f"{NAME}/{found.sweep_id}/{found.best.id}", str(remote.address)).kind == "trial"
    assert command(["report", address, "--output", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").read_text().count(found.sweep_id) > 0


def test_a_killed_coordinator_loses_nothing_of_the_stores_record(
    sweeping: Sweeping, remote: RemoteFolder, undisturbed: dict[str, Any], uri: str
) -> None:
    sweeping.start_and_wait_before(STEPS + 6)
    sweeping.until(lambda: whole_steps(remote, "0001") == [4])
    children = psutil.Process(sweeping.process.pid).children(recursive=True)
    (coordinator,) = (each for each in children if "".join(each.cmdline()[:1]).startswith(COORDINATOR))
    coordinator.kill()
    sweeping.go_on()
    result = sweeping.result()
    assert "[coordinator-restarted]" in sweeping.told()
    assert weights_of(result) == weights_of(undisturbed)
    (here,) = sweeping.cache.rglob("log.jsonl")
    assert joined(sweep_of(remote) / "log.jsonl") == here.read_bytes()
    assert [log_in(remote)[id]["attempts"] for id in IDS] == [1, 1, 1, 1]
    once = Counter(range(1, STEPS + 1))
    assert {id: steps_in(remote, id) for id in IDS} == dict.fromkeys(IDS, once)
    assert steps_in_mlflow(uri) == dict.fromkeys(IDS, once)


def test_a_store_that_is_away_is_waited_for_and_ends_the_sweep_only_if_it_stays_away(
    sweeping: Sweeping, remote: RemoteFolder, relay: Relay, undisturbed: dict[str, Any], uri: str
) -> None:
    in_the_last_trial = sweeping.folder / f"wait-{3 * STEPS + 6}"
    in_the_last_trial.touch()
    sweeping.start_and_wait_before(6)
    sweeping.until(lambda: whole_steps(remote, "0000") == [4])
    relay.leave()
    sweeping.go_on()
    in_the_last_trial.touch()
    sweeping.until(lambda: "[checkpoint-not-stored]" in sweeping.told())
    relay.come()
    sweeping.until(lambda: (sweeping.folder / "waits").exists())
    sweeping.until(lambda: whole_steps(remote, "0003") == [4])
    relay.leave()
    sweeping.go_on()
    assert sweeping.end() == 1
    relay.come()
    assert log_in(remote)["0003"]["state"] != "failed"
    result = sweeping.run("--resume")
    assert weights_of(result) == weights_of(undisturbed)
    assert log_in(remote)["0003"]["steps"] == STEPS
    assert [log_in(remote)[id]["attempts"] for id in IDS] == [1, 1, 1, 2]
    once = Counter(range(1, STEPS + 1))
    assert steps_in_mlflow(uri) == dict.fromkeys(IDS, once)


def test_trials_take_over_checkpoints_within_the_store(sweeping: Sweeping, remote: RemoteFolder, relay: Relay) -> None:
    space = {"optimizer.lr": [1e-5, 2e-5, 3e-5, 0.1]}
    section = {"space": space, "scheduler": "pbt", "first_rung": 64, "metric": "train/loss", "slots": 2}
    result = sweeping.run("trainer.epochs=6", f"sweep={json.dumps(section)}")
    assert [trial["state"] for trial in result["trials"]] == ["finished"] * 4
    adopted = {place.split("trials/")[1].split("/")[0] for place in relay.seen("PUT .*/checkpoints/ADOPTED")}
    assert adopted
    rates = {trial["id"]: trial["params"]["optimizer.lr"] for trial in result["trials"]}
    changed = {id for id, rate in zip(IDS, space["optimizer.lr"], strict=True) if rates[id] != rate}
    assert changed <= adopted
    assert all(24 in whole_steps(remote, id) for id in IDS)
