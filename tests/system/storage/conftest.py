"""A real server that plays S3, a relay in front of it, and trainings that keep their runs there."""

import itertools
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.storage.address import parse
from paceline.storage.remote_folder import RemoteFolder
from support.storage.relay import Relay
from support.storage.server import CREDENTIALS, moto
from support.storage.training import Training
from support.tracking.recording import DEAD

_numbers = itertools.count()


@pytest.fixture(scope="session")
def moto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that takes any credentials."""
    with moto(tmp_path_factory.mktemp("moto") / "log") as port:
        yield port


@pytest.fixture
def relay(moto_port: int) -> Iterator[Relay]:
    """Stands in front of the server, for this test alone."""
    with Relay(moto_port) as running:
        yield running


@pytest.fixture
def bucket(moto_port: int) -> str:
    """A new bucket of the test's own."""
    name = f"bucket-{next(_numbers)}"
    request = urllib.request.Request(f"http://127.0.0.1:{moto_port}/{name}", method="PUT")
    urllib.request.urlopen(request).read()
    return name


@pytest.fixture
def environment(relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Has this process, and what is told so, reach the server through the relay, and nothing else."""
    for key in [key for key in os.environ if key.startswith("AWS_")]:
        monkeypatch.delenv(key)
    given = {**CREDENTIALS, "AWS_ENDPOINT_URL": relay.url, "MLFLOW_TRACKING_URI": DEAD}
    for key, value in {**given, "PACELINE_CACHE": str(tmp_path / "cache-of-tests")}.items():
        monkeypatch.setenv(key, value)
    return given


@pytest.fixture
def remote(bucket: str, environment: dict[str, str]) -> RemoteFolder:
    """The folder that holds the runs."""
    return RemoteFolder(parse(f"s3://{bucket}/runs"))


@pytest.fixture
def training(tmp_path: Path, remote: RemoteFolder, environment: dict[str, str]) -> Iterator[Training]:
    """A training that keeps its runs in the bucket, and records nothing in MLflow, which is not there."""
    made = Training(tmp_path / "work", str(remote.address), environment)
    yield made
    made.leave()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the same training in a folder, to which nothing happened."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return Training(folder, str(folder / "runs"), {**CREDENTIALS, "MLFLOW_TRACKING_URI": DEAD}).run()
