"""What all tests share: they leave no process behind, and copy one prepared database."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import leaks


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left_behind() -> Iterator[None]:
    """Fail the run when something that it started outlives it. Set up first, so that it looks last."""
    token = leaks.mark()
    yield
    left = leaks.left_over(token)
    lines = [leaks.described(process) for process in left]
    if left:
        leaks.end(left)
        pytest.fail("\n  ".join(["the tests left processes behind:", *lines]), pytrace=False)


@pytest.fixture(scope="session")
def prepared_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An initialised MLflow database to copy, made by the program that makes the users' ones; one for all processes."""
    from paceline.tracking import database

    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "prepared"
    folder.mkdir(exist_ok=True)
    creation = database.start_creating(folder / "mlflow.db")
    if creation is not None:
        _, errors = creation.communicate(timeout=240)
        assert creation.returncode == 0, errors.decode()
        assert [left.name for left in folder.iterdir()] == ["mlflow.db"]
    return folder / "mlflow.db"
