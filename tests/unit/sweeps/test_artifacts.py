"""The files that a sweep leaves: the best config, and the artifacts and the note of its own MLflow run."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.loading import load_config
from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.results.record import artifacts_of, best_config, changes_of, note_of, rows_of
from paceline.sweeps.trial import Trial
from support.sweeps.configs import sweep_config
from support.sweeps.launches import launch_of

CANARY = "hunter2hunter2"
MEASURES = {"seconds": 2.0, "samples": 100, "steps": 10, "samples_per_second": 50.0, "peak_memory_bytes": 1000}


def trial(number: int = 0, **params: Any) -> Trial:
    given: dict[str, Any] = {**MEASURES, "seconds": 2.0 + number}
    params = params or {"optimizer.lr": 0.2}
    return Trial(f"{number:04d}", params, state="finished", metrics={"val/accuracy": 0.5}, **given)


@pytest.mark.parametrize(("metric", "value"), MEASURES.items())
def test_measure_of_a_trial_may_be_the_metric(metric: str, value: float, tmp_path: Path) -> None:
    launch = launch_of(sweep_config(metric=metric, mode="min"), tmp_path / "my runs")
    text = best_config(launch.config, [trial()], launch.sweep.objectives)
    assert text is not None
    assert text.startswith("# ")
    assert f" {metric} {value:g}\n" in text
    [row] = rows_of(launch, [trial()])
    assert row.metrics == {"val/accuracy": 0.5, metric: value}
    note = note_of(launch, [trial()], "finished", "")
    assert "optimizer.lr=0.2" in note
    assert f"paceline train '{launch.folder.best_config}'" in note  # quoted, as a shell needs it
    header = artifacts_of(launch, [trial()], None)["trials.csv"].decode().splitlines()[0].split(",")
    assert len(header) == len(set(header))


@pytest.mark.parametrize("scheduler", ["pbt", "asha"])
def test_best_config_trains_the_best_trial(tmp_path: Path, scheduler: str, golden: Any) -> None:
    space = {"optimizer.lr": {"loguniform": [0.01, 1.0]}}
    own = sweep_config(space, metric="val/accuracy", num_samples=4, search="random", scheduler=scheduler)
    text = best_config(own, [trial()], section_of(own).objectives) or ""
    golden("\n".join(line for line in text.splitlines() if line.startswith("#")))
    (tmp_path / "best.yaml").write_text(text)
    assert load_config(tmp_path / "best.yaml").optimizer.lr == 0.2


def test_an_argument_that_was_not_given_before_is_the_only_change() -> None:
    own = sweep_config({"model.args.width": [1, 2]}, {"model": {"path": "nets:build"}}, metric="val/accuracy")
    assert changes_of(own, trial(0, **{"model.args.width": 2})).keys() == {"model.args.width"}


def test_artifacts_hold_no_secrets_and_all_else(tmp_path: Path) -> None:
    trials = [
        trial(0, **{"model.args.password": CANARY, "optimizer.lr": 0.1}),
        trial(1, **{"model.args": {"password": CANARY, "width": [1, 2]}}),
        Trial("0002", {"optimizer.lr": 0.2}, state="failed", reason=f"OSError: password={CANARY}"),
        trial(3, **{"model.args": {"users": [{"token": CANARY}, 4]}}),
    ]
    model = {"path": "nets:build", "args": {"password": CANARY}}
    space = {"model.args.password": [CANARY, "a"]}
    launch = launch_of(sweep_config(space, {"model": model}, metric="val/accuracy"), tmp_path)
    best = best_config(launch.config, trials, launch.sweep.objectives)
    assert best is not None
    assert CANARY in best  # it is to be trained with
    artifacts = artifacts_of(launch, trials, best)
    assert set(artifacts) == {"trials.json", "trials.csv", "best.yaml"}
    assert [name for name, data in artifacts.items() if CANARY.encode() in data] == []
    first, second, failed, last = json.loads(artifacts["trials.json"])
    assert first["params"] == {"model.args.password": "***", "optimizer.lr": 0.1}
    assert second["params"] == {"model.args": {"password": "***", "width": [1, 2]}}
    assert last["params"] == {"model.args": {"users": [{"token": "***"}, 4]}}
    assert failed["reason"] == "OSError: password=***"
    rows = list(csv.DictReader(io.StringIO(artifacts["trials.csv"].decode())))
    assert [row["optimizer.lr"] for row in rows] == ["0.1", "", "0.2", ""]
    assert rows[0]["val/accuracy"] == "0.5"
