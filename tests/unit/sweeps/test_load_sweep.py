"""A sweep that has run before, opened again from its folder."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import load_sweep
from paceline.errors import ConfigError, EnvironmentFault
from paceline.sweeps.sweep_folder import claim_sweep
from paceline.tracking import metrics
from support.sweeps.configs import sweep_config
from support.sweeps.finished import TRIALS, leave_sweep, record_sweep

CONFIG = sweep_config({"optimizer.lr": [0.1, 0.2, 0.3]}, {"name": "compare"}, metric="val/accuracy")


def test_finished_sweep_is_what_it_was(tmp_path: Path) -> None:
    folder = leave_sweep(CONFIG, tmp_path)
    folder.best_config.write_text("name: best\n")
    record_sweep(folder, "http://user:secret@host:5000", {"other": "1"})
    found = load_sweep(str(folder.path))
    assert (found.sweep_id, found.name, found.status) == (folder.run_id, "compare", "finished")
    assert found.trials == TRIALS[:2]
    assert found.best == TRIALS[1]
    assert found.best_config is not None
    assert found.best_config.model_dump()["optimizer"]["lr"] == 0.2
    assert (found.objectives, found.config) == ((("val/accuracy", "max"),), CONFIG)
    assert found.best_config_path == str(folder.path / "best.yaml")
    page = "http://host:5000/#/experiments/4/runs/abc?workflowType=machine_learning"
    assert (found.mlflow_url, found.parent_run_id) == (page, "abc")
    assert (found.wall_seconds, found.needs_ui) == (7.0, False)


def test_newest_entry_of_a_trial_counts_and_a_path_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = leave_sweep(CONFIG, tmp_path, trials=(replace(TRIALS[0], state="running"), *TRIALS[:2]))
    found = load_sweep(folder.path.relative_to(tmp_path))
    assert [trial.state for trial in found.trials] == ["finished", "finished"]
    assert found.folder == folder.path
    assert (found.mlflow_url, found.parent_run_id, found.best_config_path) == (None, None, "")  # no record, no page
    record_sweep(folder, "sqlite:////x/mlflow.db", {})
    by_name = load_sweep(tmp_path / "compare")  # the newest one
    assert (by_name.folder, by_name.needs_ui) == (folder.path, True)


@pytest.mark.parametrize(
    ("written", "reason", "status"),
    [
        ("finished", "", "finished"),
        ("finished", "trial 0001 reached the target: val/accuracy is 0.9", "stopped"),
        ("interrupted", "stopped after 60 s, as sweep.stop.wall_seconds says", "stopped"),
        ("interrupted", "interrupted", "interrupted"),
        ("running", "", "interrupted"),
    ],
)
def test_status_says_how_a_sweep_ended(tmp_path: Path, written: str, reason: str, status: str) -> None:
    folder = leave_sweep(CONFIG, tmp_path, written, TRIALS)
    record_sweep(folder, "sqlite:////x/mlflow.db", {metrics.STATUS_REASON: reason})
    found = load_sweep(folder.path)
    assert found.status == status
    assert found.trials[2].state == "pending"  # nobody is at work on it


def test_running_sweep_is_shown_as_it_stands(tmp_path: Path) -> None:
    folder = leave_sweep(CONFIG, tmp_path, "running", TRIALS)
    record_sweep(folder, "sqlite:////x/mlflow.db", {}, seconds=0)
    older = tmp_path / "compare" / "20000101-000000-000000"
    leave_sweep(CONFIG, tmp_path, "running", TRIALS).path.rename(older)
    claimed = claim_sweep(CONFIG, tmp_path, intent="resume")
    try:
        assert claimed.folder == folder
        found = load_sweep(folder.path)
        assert (found.status, found.trials) == ("running", TRIALS)
        assert found.wall_seconds == pytest.approx(time.time() - 1000, abs=60)
        assert load_sweep(older).status == "interrupted"
    finally:
        claimed.release()
    assert load_sweep(folder.path).status == "interrupted"


@pytest.mark.parametrize("kind", ["nowhere", "run", "inside", "storage", "empty", "damaged"])
def test_folder_without_a_sweep_is_an_error_that_says_what_is_there(tmp_path: Path, kind: str, golden: Any) -> None:
    folder = leave_sweep(CONFIG, tmp_path)
    (folder.path / "trials" / "0001").mkdir(parents=True)
    single = tmp_path / "other" / "single"
    single.mkdir(parents=True)
    (single / "run.json").write_text("{}")
    texts: Mapping[str, str] = {"empty": '{"status": "running"}', "damaged": "{broken"}
    paths = {"nowhere": tmp_path / "nowhere", "run": single, "inside": folder.path / "trials", "storage": tmp_path}
    if kind in texts:
        (folder.path / "sweep.json").write_text(texts[kind])
    with pytest.raises(EnvironmentFault) as caught:
        load_sweep(paths.get(kind, folder.path))
    assert (caught.value.code == "no-sweep") or kind != "empty"
    golden(str(caught.value).replace(folder.run_id, "<sweep>"))


def test_config_of_another_version_is_an_error(tmp_path: Path) -> None:
    folder = leave_sweep(CONFIG, tmp_path)
    folder.write(config={**folder.read()["config"], "model": {"name": "gone"}})
    with pytest.raises(ConfigError) as caught:
        load_sweep(folder.path)
    [problem] = caught.value.problems
    assert (problem.code, problem.key) == ("run-config", "model.name")
