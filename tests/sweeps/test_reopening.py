"""A sweep that has run before, opened again from its folder."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import load_sweep
from paceline.config import ExperimentConfig
from paceline.config.loading import validate
from paceline.errors import ConfigError, EnvironmentFault
from paceline.sweeps.folder import SweepFolder, claim_sweep
from paceline.sweeps.log import SweepLog
from paceline.sweeps.trials import Trial
from paceline.tracking import metrics
from paceline.tracking.cursor import Cursor
from paceline.tracking.journal import Journal
from paceline.tracking.record import RunRecord

TRIALS = (
    Trial("0001", {"optimizer.lr": 0.1}, "finished", metrics={"val/accuracy": 0.7}, attempts=1),
    Trial("0000", {"optimizer.lr": 0.2}, "finished", metrics={"val/accuracy": 0.9}, attempts=2),
    Trial("0002", {"optimizer.lr": 0.3}, "running", attempts=1),
)


def config(**sweep: Any) -> ExperimentConfig:
    section = {"space": {"optimizer.lr": [0.1, 0.2, 0.3]}, "metric": "val/accuracy", **sweep}
    data = {"name": "synthetic", "global_batch_size": 64}
    return validate({"name": "compare", "model": {"name": "mlp"}, "data": data, "sweep": section})


def made(storage: Path, status: str = "finished", trials: tuple[Trial, ...] = TRIALS[:2]) -> SweepFolder:
    """A sweep's folder as a launch leaves it behind."""
    claimed = claim_sweep(config(), storage, must_resume=False, anew=True)
    claimed.folder.write(status=status)
    log = SweepLog(claimed.folder.path)
    for trial in trials:
        log.trial(trial)
    log.close()
    claimed.release()
    return claimed.folder


def recorded(folder: SweepFolder, uri: str, tags: Mapping[str, str], seconds: float = 7.0) -> None:
    folder.tracking.mkdir()
    record = RunRecord(folder.run_id, "compare", uri, "compare", start_time_ms=1_000_000)
    record.save(folder.tracking)
    journal = Journal(folder.tracking / "journal.jsonl")
    end = {"status": "FINISHED", "time_ms": round(1_000_000 + 1000 * seconds)}
    journal.append([("tags", {"tags": dict(tags)}), ("status", end)])
    journal.close()
    Cursor(run_id="abc", experiment_id="4").save(folder.tracking / "shipped.json")


def test_a_finished_sweep_is_what_it_was(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.best_config.write_text("name: best\n")
    recorded(folder, "http://user:secret@host:5000", {"other": "1"})
    found = load_sweep(str(folder.path))
    assert (found.sweep_id, found.name, found.status) == (folder.run_id, "compare", "finished")
    assert found.trials == TRIALS[:2]
    assert found.best == TRIALS[1]
    assert found.best_config is not None
    assert found.best_config.model_dump()["optimizer"]["lr"] == 0.2
    assert found.objectives == (("val/accuracy", "max"),)
    assert found.config == config()
    assert found.best_config_path == str(folder.path / "best.yaml")
    page = "http://host:5000/#/experiments/4/runs/abc?workflowType=machine_learning"
    assert (found.mlflow_url, found.parent_run_id) == (page, "abc")
    assert (found.wall_seconds, found.needs_ui) == (7.0, False)


def test_the_newest_word_on_a_trial_counts_and_a_relative_path_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = made(tmp_path, trials=(Trial("0001", {"optimizer.lr": 0.1}, "running"), *TRIALS[:2]))
    found = load_sweep(folder.path.relative_to(tmp_path))
    assert [trial.state for trial in found.trials] == ["finished", "finished"]
    assert found.folder == folder.path


def test_without_a_record_there_is_no_page(tmp_path: Path) -> None:
    found = load_sweep(made(tmp_path).path)
    assert (found.mlflow_url, found.parent_run_id, found.best_config_path) == (None, None, "")
    recorded(folder := made(tmp_path), "sqlite:////x/mlflow.db", {})
    assert load_sweep(folder.path).needs_ui


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
def test_how_it_ended(tmp_path: Path, written: str, reason: str, status: str) -> None:
    folder = made(tmp_path, written, TRIALS)
    recorded(folder, "sqlite:////x/mlflow.db", {metrics.STATUS_REASON: reason})
    found = load_sweep(folder.path)
    assert found.status == status
    assert found.trials[2].state == "pending"  # nobody is at work on it


def test_a_running_sweep_is_shown_as_it_stands(tmp_path: Path) -> None:
    folder = made(tmp_path, "running", TRIALS)
    recorded(folder, "sqlite:////x/mlflow.db", {}, seconds=0)
    older = made(tmp_path, "running", TRIALS)
    older.path.rename(tmp_path / "compare" / "20000101-000000-000000")
    claimed = claim_sweep(config(), tmp_path, must_resume=True, anew=False)
    try:
        assert claimed.folder == folder
        found = load_sweep(folder.path)
        assert found.status == "running"
        assert found.trials == TRIALS
        assert found.wall_seconds == pytest.approx(time.time() - 1000, abs=60)
        assert dict(found.rows())["status"].startswith("running")
        assert load_sweep(tmp_path / "compare" / "20000101-000000-000000").status == "interrupted"
    finally:
        claimed.release()
    assert load_sweep(folder.path).status == "interrupted"


def test_what_is_no_sweep_says_what_is_there(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder.path / "trials" / "0001").mkdir(parents=True)
    single = tmp_path / "other" / "single"
    single.mkdir(parents=True)
    (single / "run.json").write_text("{}")
    assert load_sweep(tmp_path / "compare").folder == folder.path  # a name means the newest one of it
    for path, expected in {
        tmp_path / "nowhere": f"there is no run '{tmp_path / 'nowhere'}'",
        single: f"is a run: open it with load_run('{single}')",
        folder.path / "trials": f"lies within the sweep compare/{folder.run_id}",
        tmp_path: "holds the runs of compare, other; name one of them",
    }.items():
        with pytest.raises(EnvironmentFault) as raised:
            load_sweep(path)
        assert expected in str(raised.value)
    folder.path.joinpath("sweep.json").write_text('{"status": "running"}')
    with pytest.raises(EnvironmentFault, match=r"there is no sweep in .*: sweep\.json with its config is missing"):
        load_sweep(folder.path)
    (folder.path / "sweep.json").write_text("{broken")
    with pytest.raises(EnvironmentFault, match=r"sweep\.json is damaged: put it back"):
        load_sweep(folder.path)


def test_a_config_that_is_none_any_more_says_so(tmp_path: Path) -> None:
    folder = made(tmp_path)
    content = folder.read()["config"]
    folder.write(config={**content, "model": {"name": "gone"}})
    with pytest.raises(ConfigError, match=r"the config of the sweep in .* cannot be read"):
        load_sweep(folder.path)


def test_neither_ray_nor_torch_nor_mlflow_is_imported(tmp_path: Path) -> None:
    folder = made(tmp_path)
    code = (
        "import json, sys; from paceline import load_sweep; print(len(repr(load_sweep(sys.argv[1]))) > 0);"
        "print(json.dumps([name for name in ('ray', 'torch', 'mlflow') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "True"
    assert json.loads(lines[1]) == []
