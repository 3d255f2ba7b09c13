"""What all tests share: they leave no process behind, and copy one prepared database."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import leaks

# A shell has what goes on in the background ignore Ctrl-C, `nohup` has it ignore SIGHUP, and so would do what the tests
# start, and mean to end by them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


@pytest.fixture(autouse=True)
def _no_secret_is_remembered() -> Iterator[None]:
    """What one test's config holds under a telling key is an ordinary word in the next."""
    yield
    if (values := sys.modules.get("paceline.tracking.secret_values")) is not None:
        values._learned.clear()
        values._known = (None, -1, values.Known())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what shares one Ray, since one process has all of it to do while the others share the rest."""
    items.sort(key=lambda item: not item.path.name.endswith("_on_ray.py"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the files whose tests share one Ray in one process; every other file may go to any."""
    from xdist.scheduler import LoadFileScheduling

    class OneRay(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return "on_ray" if path.endswith("_on_ray.py") else path

    return OneRay(config, log)
