"""Runs that are in MLflow and not in the folder, and runs of the folder that MLflow's page does not show."""

import shutil
from pathlib import Path

import pytest

from paceline.cli import run as command
from paceline.errors import EnvironmentFault
from paceline.runs.finding import find_run
from support.runs.records import NEWER, killed_run, record, run_folder, uri_of
from support.tracking.answering import answering, healthy
from support.tracking.recording import DEAD


def test_where_no_folder_knows_the_id_the_store_is_asked(storage: Path, database: Path) -> None:
    folder = run_folder(storage)
    report = record(folder.tracking, uri_of(database)).close("FINISHED")
    (folder.tracking / "uploaded.json").unlink()
    assert find_run(str(report.run_id), storage, uri=uri_of(database)).folder == folder.path
    shutil.rmtree(folder.path)
    with pytest.raises(EnvironmentFault) as caught:
        find_run(str(report.run_id), storage, uri=uri_of(database))
    assert (caught.value.code, caught.value.fields["own_id"]) == ("no-folder", NEWER)


def test_asking_a_store_that_is_not_there_makes_none(storage: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        find_run("f" * 32, storage, uri=uri_of(storage / "none.db"))
    assert caught.value.code == "no-folder"
    assert not (storage / "none.db").exists()


def test_ui_reports_runs_of_another_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    killed_run(tmp_path / "runs", DEAD)
    with answering(healthy) as uri:
        assert command(["ui", "--uri", uri]) == 0
    assert DEAD in capsys.readouterr().out
