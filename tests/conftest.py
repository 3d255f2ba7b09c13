"""What all tests share: they leave no process behind, and copy one prepared database."""

import atexit
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.garbage_collection import collector_paused
from support import forkserver, leaks
from support.golden import GoldenPlugin
from support.logged import Logged

# A shell has what goes on in the background ignore Ctrl-C, `nohup` has it ignore SIGHUP, and so would do what the tests
# start, and mean to end by them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Otherwise each of the many processes that the tests start would compile torch, Ray and MLflow by itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tensors of tests are small: more threads wait for each other, most of all beside the other test processes. Set before
# torch is imported, and inherited by what the tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _end_at_once(worker: int) -> None:
    if os.getpid() == worker:  # rather than a process that was forked from it
        os._exit(0)


# A worker of xdist takes seconds to free all that it has imported. Registered first, so that it is called last.
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(_end_at_once, os.getpid())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts again")


FORKSERVER = "forkserver"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GoldenPlugin(config), "golden")
    if address := getattr(config, "workerinput", {}).get(FORKSERVER):
        forkserver.use(address)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have all test processes fork from one server, which takes seconds of a core to import what is slow."""
    if not _stays_in_process(node.config):
        node.workerinput[FORKSERVER] = forkserver.address()


def _stays_in_process(config: pytest.Config) -> bool:
    """Return True if the tests that are asked for start no process."""
    asked = [Path(each.partition("::")[0]).parts for each in config.args]
    return bool(asked) and all({"unit", "in_process"} & set(parts) for parts in asked)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Each test process imports torch, Ray and MLflow here, and makes thousands of tests: none of that is garbage."""
    with collector_paused():
        result = yield
    gc.freeze()
    return result


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
    from paceline.tracking import mlflow_database

    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "prepared"
    folder.mkdir(exist_ok=True)
    creation = mlflow_database.start_creating(folder / "mlflow.db")
    if creation is not None:
        _, errors = creation.communicate(timeout=240)
        assert creation.returncode == 0, errors.decode()
        assert [left.name for left in folder.iterdir()] == ["mlflow.db"]
    return folder / "mlflow.db"


FEW_OBJECTS = 100_000


@pytest.fixture(scope="module", autouse=True)
def _imported_modules_are_no_garbage() -> None:
    """Each training in this process collects garbage: 0.2 s if it looks through all that torch and MLflow hold."""
    if len(gc.get_objects(generation=2)) > FEW_OBJECTS:  # more were imported, or a test has unfrozen them
        gc.freeze()


@pytest.fixture(autouse=True)
def _the_import_path_is_restored() -> Iterator[None]:
    """A config with user code makes its folder importable: of later tests, and of the processes that they start."""
    path = sys.path[:]
    yield
    sys.path[:] = path
    imports = sys.modules.get("paceline.config.imports")
    if imports is not None:
        imports._added[:] = [entry for entry in imports._added if entry in path]


@pytest.fixture(autouse=True)
def _no_secret_is_remembered() -> Iterator[None]:
    """What one test's config holds under a telling key is an ordinary word in the next."""
    yield
    if (values := sys.modules.get("paceline.secret_values")) is not None:
        values._learned.clear()
        values._known = (None, -1, values.Known())


@pytest.fixture
def logged() -> Iterator[Logged]:
    """The log records of the test."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def separate_processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate process of a plan, lint or benchmark imports torch first, unless it comes from one that has it."""
    from paceline.cluster import separate_process
    from support import forked_process

    monkeypatch.setattr(separate_process, "_popen", forked_process.run_module)


READS_CODE = ("test_rooms.py", "test_language.py", "test_private_api.py", "test_error_codes.py")
"""Files that parse all of the project's code, which takes seconds in each process."""
LONG = ("test_tuneup_command.py", "test_train_command.py", "test_plan_command.py")
"""Files that take a minute or more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first: what shares one Ray, in one process; then the other system tests; quick ones fill the gaps."""
    items.sort(
        key=lambda item: (
            not item.path.name.endswith("_on_ray.py"),
            item.path.name not in LONG,
            not {"unit", "in_process"}.isdisjoint(item.path.parts),
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each core, and one more where tests start processes: those on Ray wait more than they compute."""
    return min(len(os.sched_getaffinity(0)), 8) + (not _stays_in_process(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep files whose tests share one Ray, or the parsed code, in one process; every other file may go to any."""
    from xdist.scheduler import LoadFileScheduling

    class Sharing(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path: str = super()._split_scope(nodeid)
            return "on_ray" if path.endswith("_on_ray.py") else "code" if path.endswith(READS_CODE) else path

    return Sharing(config, log)
