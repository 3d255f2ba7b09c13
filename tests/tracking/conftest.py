"""Copies of the prepared database, a server on one of them, and a proxy that breaks on request."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.tracking import backoff, remote, shipping
from paceline.tracking.metrics import LAG_SECONDS
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.server import free_port, start_server, stop_server, wait_until_up
from tracking.faulty_proxy import FaultyProxy


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("URI", "TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{variable}", raising=False)
    monkeypatch.setattr(shipping, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _no_recorder_goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that leaves a recorder open, as a crash does, must not have it meddle with the tests that follow."""
    made: list[shipping.Shipper] = []
    make = shipping.Shipper.__init__
    monkeypatch.setattr(
        shipping.Shipper, "__init__", lambda self, *given, **named: (made.append(self), make(self, *given, **named))[1]
    )
    yield
    for each in made:
        each._abandoned.set()


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    """A folder whose name means something else in an address."""
    folder = tmp_path / "50%41 c#d q?x 日本 ü"
    folder.mkdir()
    return folder


@pytest.fixture
def sqlite_uri(prepared_database: Path, tmp_path: Path) -> str:
    """A fresh database of the test's own."""
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture(scope="session")
def server_uri(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server. Experiments are shared, so each test takes one of its own."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(prepared_database, folder / "mlflow.db")
    # apart from those of other test processes, which may look for a free one at the same moment
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    port = free_port(15_000 + 40 * own)
    server = start_server(f"sqlite:///{folder / 'mlflow.db'}", port, log=folder / "server.log")
    try:
        wait_until_up(server, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_server(server)


@pytest.fixture
def proxy(server_uri: str) -> Iterator[FaultyProxy]:
    """Stands between a recorder and the real server."""
    with FaultyProxy(server_uri) as running:
        yield running


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., RunRecord]:
    """Makes a record whose run id and experiment are the test's own."""

    def make(uri: str, **changes: object) -> RunRecord:
        name = request.node.name.translate(str.maketrans("[]", "--"))
        given = {"run_id": f"run-{name}", "name": "mnist-cnn", "uri": uri, "experiment": f"experiment {name}"}
        return RunRecord(**{**given, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def run_python() -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts Python on a piece of code; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def points() -> Callable[..., list[Point]]:
    """Makes points of one key with steps in a range; the value tells the step, the time starts at `since`."""

    def make(*steps: int, key: str = "train/loss", since: int = 1_000) -> list[Point]:
        return [Point(key, 1.0 / step, step, since + step) for step in range(*steps)]

    return make


@pytest.fixture
def stored() -> Callable[..., list[tuple[str, int, float, int]]]:
    """Reads back what MLflow has of a run: (key, step, value, time) of every point, in order.

    Without the points that the recorder adds by itself, and which tell how long others waited.
    """

    def read(uri: str, run_id: str) -> list[tuple[str, int, float, int]]:
        client = remote.connect(uri)
        keys = sorted(client.get_run(run_id).data.metrics)
        metrics = [metric for key in keys for metric in client.get_metric_history(run_id, key)]
        return sorted(
            (metric.key, metric.step, metric.value, metric.timestamp) for metric in metrics if metric.key != LAG_SECONDS
        )

    return read


@pytest.fixture
def runs_of() -> Callable[[RunRecord], list[str]]:
    """MLflow's ids of all runs in a record's experiment that are not deleted."""

    def find(record: RunRecord) -> list[str]:
        client = remote.connect(record.uri)
        experiment = client.get_experiment_by_name(record.experiment)
        assert experiment is not None
        return [run.info.run_id for run in client.search_runs([experiment.experiment_id])]

    return find
