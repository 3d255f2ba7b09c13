"""The files that a sweep leaves: the best config, and what its own MLflow run is told."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import load_config, validate
from paceline.sweeps.results.closing import best_config
from paceline.sweeps.results.record import artifacts_of, note_of, rows_of
from paceline.sweeps.sweep import SweepLaunch
from paceline.sweeps.trials import Trial
from sweeps.launches import launch_of

CANARY = "hunter2hunter2"


def config(**section: Any) -> ExperimentConfig:
    sweep = {"space": {"optimizer.lr": [0.1, 0.2]}, **section}
    return validate({"name": "run", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, "sweep": sweep})


def trial(number: int = 0, **overrides: Any) -> Trial:
    return Trial(
        f"{number:04d}",
        overrides or {"optimizer.lr": 0.2},
        state="finished",
        metrics={"val/accuracy": 0.5},
        steps=10,
        samples=100,
        samples_per_second=50.0,
        peak_memory_bytes=1000,
        seconds=2.0 + number,
    )


MEASURES = {"seconds": 2.0, "samples": 100, "steps": 10, "samples_per_second": 50.0, "peak_memory_bytes": 1000}


@pytest.mark.parametrize(("metric", "value"), MEASURES.items())
def test_a_measure_may_be_the_metric(metric: str, value: float, tmp_path: Path) -> None:
    launch = launch_of(config(metric=metric, mode="min"), tmp_path)
    text = best_config(launch.config, [trial()], launch.sweep.objectives)
    assert text is not None
    assert text.startswith(f"# The best trial, 0000, of the sweep of run: {metric} {value:g}\n")
    [row] = rows_of(launch, [trial()])
    assert row.metrics == {"val/accuracy": 0.5, metric: value}
    assert "**Best: optimizer.lr=0.2**" in note_of(launch, [trial()], "finished", "")
    header = artifacts_of(launch, [trial()], None)["trials.csv"].decode().splitlines()[0].split(",")
    assert len(header) == len(set(header))


def test_the_best_config_of_pbt_says_that_it_trains_from_scratch(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"loguniform": [0.01, 1.0]}}
    section = {"space": space, "num_samples": 4, "search": "random", "metric": "val/accuracy"}
    for scheduler, says in (("pbt", True), ("asha", False)):
        own = config(**section, scheduler=scheduler)
        text = best_config(own, [trial()], section_objectives(own)) or ""
        assert ("from scratch" in text) == says
        (tmp_path / "best.yaml").write_text(text)
        assert load_config(tmp_path / "best.yaml").optimizer.lr == 0.2


def section_objectives(own: ExperimentConfig) -> Any:
    assert own.sweep is not None
    return own.sweep.objectives


def with_secrets(tmp_path: Path) -> tuple[SweepLaunch, list[Trial]]:
    tree = {"name": "run", "model": {"path": "nets:build", "args": {"password": CANARY}}, "data": {"name": "synthetic"}}
    trials = [
        trial(0, **{"model.args.password": CANARY, "optimizer.lr": 0.1}),
        trial(1, **{"model.args": {"password": CANARY, "width": [1, 2]}}),
        Trial("0002", {"optimizer.lr": 0.2}, state="failed", reason=f"OSError: password={CANARY}"),
        trial(3, **{"model.args": {"users": [{"token": CANARY}, 4]}}),
    ]
    sweep = {"space": {"model.args.password": [CANARY, "a"]}, "metric": "val/accuracy"}
    return launch_of(validate({**tree, "sweep": sweep}), tmp_path), trials


def test_secrets_are_not_told_to_mlflow(tmp_path: Path) -> None:
    launch, trials = with_secrets(tmp_path)
    best = best_config(launch.config, trials, launch.sweep.objectives)
    assert best is not None
    assert CANARY in best  # it is to be trained with
    artifacts = artifacts_of(launch, trials, best)
    assert set(artifacts) == {"trials.json", "trials.csv", "best.yaml"}
    assert [name for name, data in artifacts.items() if CANARY.encode() in data] == []


def test_what_is_no_secret_is_told(tmp_path: Path) -> None:
    launch, trials = with_secrets(tmp_path)
    artifacts = artifacts_of(launch, trials, None)
    told = json.loads(artifacts["trials.json"])
    assert told[0]["overrides"] == {"model.args.password": "***", "optimizer.lr": 0.1}
    assert told[1]["overrides"] == {"model.args": {"password": "***", "width": [1, 2]}}
    assert told[3]["overrides"] == {"model.args": {"users": [{"token": "***"}, 4]}}
    assert told[2]["reason"] == "OSError: password=***"
    rows = list(csv.DictReader(io.StringIO(artifacts["trials.csv"].decode())))
    assert [row["optimizer.lr"] for row in rows] == ["0.1", "", "0.2", ""]
    assert rows[0]["val/accuracy"] == "0.5"


def test_the_command_holds_a_path_with_blanks(tmp_path: Path) -> None:
    launch = launch_of(config(metric="val/accuracy"), tmp_path / "my runs")
    note = note_of(launch, [trial()], "finished", "")
    assert f"paceline train '{launch.folder.best_config}'" in note
