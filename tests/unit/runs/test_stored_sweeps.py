"""Sweeps and trials of an object store, found and opened by address or by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import load_run, load_sweep
from paceline.errors import EnvironmentFault
from paceline.runs.finding import find_run, trial_of
from paceline.runs.listing import list_runs
from paceline.storage.address import RunStore, cache_folder
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.sweeps.stored_sweep import SweepCopy
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking.journal import Journal
from paceline.tracking.metric_points import MetricPoint
from support.refusals import refused
from support.storage.stores import STORAGE, go_to, play_store
from support.sweeps.configs import sweep_config

BEST = Trial("0001", {"optimizer.lr": 0.2}, "finished", metrics={"val/loss": 0.1}, weights_sha256="b" * 64)
TRIALS = (Trial("0000", {"optimizer.lr": 0.1}, "finished", metrics={"val/loss": 0.2}), BEST)


def leave(run: RunStore, status: str, *trials: Trial) -> str:
    """Leave a sweep in the store, with a checkpoint of each trial; its address."""
    content = {"status": status, "config": sweep_config().model_dump(mode="json"), "launch": run.launch}
    remote = RemoteFolder(run.address)
    remote.write("sweep.json", json.dumps(content).encode())
    run.folder.mkdir(parents=True, exist_ok=True)
    log = SweepLog(run.folder)
    for trial in trials:
        log.append([trial_entry(trial)])
        journal = Journal(run.folder / "trials" / trial.id / "tracking" / "journal.jsonl")
        journal.append([("point", MetricPoint("val/loss", trial.metrics["val/loss"], 8, 1).to_json())])
        journal.close()
        manifest = {"files": {"model.safetensors": {"size_bytes": 1, "sha256": "x"}}, "step": 8}
        place = remote / "trials" / trial.id / "checkpoints" / "step-8"
        place.write("MANIFEST.json", json.dumps(manifest).encode())
    log.close()
    SweepCopy(run).push()
    return run.address.bare


@pytest.fixture(autouse=True)
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """The place of a sweep; from then on, this is another machine."""
    play_store(tmp_path, monkeypatch)
    run = RunStore(str(STORAGE), "run", "20261125-100000-aa", str(STORAGE), "launch-1")
    leave(run, "finished", *TRIALS)
    go_to(tmp_path / "other", monkeypatch)
    monkeypatch.setenv("PACELINE_STORAGE", str(STORAGE))
    return run


def test_a_sweep_is_opened_by_its_address_or_its_name(sweep: RunStore) -> None:
    for name in (str(sweep.address), "run", f"run/{sweep.run_id}"):
        found = load_sweep(name)
        assert (found.sweep_id, found.name, found.status) == (sweep.run_id, "run", "finished")
        assert sorted(found.trials, key=lambda trial: trial.id) == list(TRIALS)
        assert found.folder.is_relative_to(cache_folder() / "copies")
    assert refused(EnvironmentFault, load_run, str(sweep.address)).code == "other-kind"


@pytest.mark.parametrize("place", ["{sweep}/trials/0001", "{sweep}/0001", "run/{id}/0001"])
def test_a_trial_is_opened_by_its_address_or_its_name(sweep: RunStore, place: str) -> None:
    name = place.format(sweep=sweep.address.bare, id=sweep.run_id)
    name = f"{name}?region=test" if "//" in name else name
    found = find_run(name)
    assert (found.kind, found.id, found.name) == ("trial", "0001", "run")
    assert found.store is not None
    assert found.store.address == sweep.trial("0001").address
    result = load_run(name)
    assert (result.weights_sha256, result.config.model_dump()["optimizer"]["lr"]) == (BEST.weights_sha256, 0.2)
    assert result.checkpoint == str(sweep.trial("0001").shown_address() / "checkpoints" / "step-8")
    assert result.points == (("val/loss", 0.1, 8),)


def test_a_trial_of_a_sweep_that_was_found(sweep: RunStore) -> None:
    trial = trial_of(find_run("run"), "0001")
    assert trial == find_run(f"run/{sweep.run_id}/0001")
    assert [path.name for path in trial.checkpoints.iterdir()] == ["step-8"]


def test_a_copy_follows_what_happens_to_the_sweep(
    sweep: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_sweep("run")
    go_to(tmp_path / "cache", monkeypatch)
    leave(sweep, "finished", replace(BEST, id="0002"))
    go_to(tmp_path / "other", monkeypatch)
    assert {trial.id for trial in load_sweep("run").trials} == {"0000", "0001", "0002"}


def test_a_sweep_runs_while_the_lease_is_that_of_its_launch(sweep: RunStore) -> None:
    older = replace(sweep, run_id="20261125-090000-aa", launch="launch-0")
    leave(older, "running")
    newer = replace(sweep, run_id="20261125-110000-aa", launch="launch-2")
    leave(newer, "running")
    home = RemoteFolder(newer.home)

    def statuses() -> list[Any]:
        listed = {run.id: (run.kind, run.status) for run in list_runs()}
        assert listed.keys() == {older.run_id, sweep.run_id, newer.run_id}
        return [listed[newer.run_id], listed[older.run_id], load_sweep("run").status]

    assert statuses() == [("sweep", "interrupted"), ("sweep", "interrupted"), "interrupted"]
    Lease(home, "launch-2").renew()
    assert statuses() == [("sweep", "running"), ("sweep", "interrupted"), "running"]
    Lease(home, "a sync").renew()
    assert statuses() == [("sweep", "interrupted"), ("sweep", "interrupted"), "interrupted"]


def test_what_is_missing_is_reported(sweep: RunStore) -> None:
    for name in (f"run/{sweep.run_id}/0009", "other"):
        assert refused(EnvironmentFault, find_run, name).code == "no-run"


def test_a_run_may_be_named_trials(sweep: RunStore) -> None:
    run = RunStore(str(STORAGE), "trials", "20261125-100000-bb", str(STORAGE))
    RemoteFolder(run.address).write("run.json", b'{"status": "finished"}')
    found = find_run("trials")
    assert (found.kind, found.id) == ("run", run.run_id)
    assert found.store is not None
    assert found.store.address == run.address
