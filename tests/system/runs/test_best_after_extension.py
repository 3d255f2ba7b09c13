"""The best checkpoint of a run that was trained further: `train`, `export`, `evaluate` and `load_run` name the same."""

from pathlib import Path

import pytest

from paceline import export, load_run
from support.runs.trained_runs import extended


@pytest.fixture
def home(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_may_be_one_of_the_run_that_is_extended(home: Path) -> None:
    result = extended(home)
    assert result.steps == 8
    assert result.best is not None
    assert result.best.step == 2
    assert load_run(result.folder).best == result.best
    exported = export(result.folder, output=home / "exported")
    assert (exported.step, exported.metrics["val/loss"]) == (2, result.best.value)
    assert result.evaluate(checkpoint="best")["val/loss"] == result.best.value


def test_another_metric_is_monitored_from_the_extension_on(home: Path) -> None:
    result = extended(home, **{"checkpoint.monitor": "val/accuracy"})
    assert result.best is not None
    assert (result.best.metric, result.best.step > 4) == ("val/accuracy", True)
