"""Runs that are found by asking MLflow."""

import shutil
from pathlib import Path

import pytest

from paceline.errors import EnvironmentFault
from paceline.review.finding import find_run
from support.runs.records import NEWER, record, run_folder, uri_of


def test_where_no_folder_knows_the_id_the_store_is_asked(storage: Path, database: Path) -> None:
    folder = run_folder(storage)
    report = record(folder.tracking, uri_of(database)).close("FINISHED")
    (folder.tracking / "shipped.json").unlink()
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
