"""Which store is chosen, and how fast a wrong one is found out."""

import os
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from paceline.config.sections import TrackingConfig
from paceline.errors import ConfigError, EnvironmentFault
from paceline.tracking.probing import probe
from paceline.tracking.store import run_url, sqlite_file, tracking_uri
from tracking.faulty_proxy import FaultyProxy

CANARY = "canary-S3cr3t"


def test_the_config_comes_before_the_environment_and_that_before_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracking_uri(TrackingConfig(), tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://from-environment:5000")
    assert tracking_uri(TrackingConfig(), tmp_path) == "http://from-environment:5000"
    assert tracking_uri(TrackingConfig(uri="http://from-config:5000/"), tmp_path) == "http://from-config:5000"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sqlite:///runs.db", "sqlite:///{folder}/runs.db"),
        ("sqlite:///a/b.db?timeout=30", "sqlite:///{folder}/a/b.db?timeout=30"),
        ("sqlite:////abs/runs.db", "sqlite:////abs/runs.db"),
        ("postgresql://db/mlflow", "postgresql://db/mlflow"),
    ],
)
def test_a_database_address_becomes_absolute(tmp_path: Path, given: str, expected: str) -> None:
    uri = tracking_uri(TrackingConfig(uri=given), tmp_path)
    assert uri == expected.format(folder=tmp_path)
    assert (sqlite_file(uri) is None) == given.startswith("postgresql")


@pytest.mark.parametrize(
    "uri", ["./mlruns", "file:///tmp/mlruns", "ftp://x/y", "sqlite://", "sqlite:///:memory:", "http://", "http://h:x"]
)
def test_an_address_that_cannot_work_is_refused_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    with pytest.raises(ConfigError, match="http://host:port") as caught:
        tracking_uri(TrackingConfig(uri=uri), tmp_path)
    assert caught.value.problems[0].key == "tracking.uri"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(EnvironmentFault, match="MLFLOW_TRACKING_URI"):
        tracking_uri(TrackingConfig(), tmp_path)


def test_links(tmp_path: Path) -> None:
    page = "#/experiments/7/runs/abc?workflowType=machine_learning"
    assert run_url(f"http://u:{CANARY}@host:5000/ml/", "7", "abc") == f"http://host:5000/ml/{page}"
    assert run_url(f"sqlite:///{tmp_path}/mlflow.db", "7", "abc") == f"http://127.0.0.1:5000/{page}"


def test_a_dead_port_is_found_out_in_time_and_names_no_secret() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(EnvironmentFault) as caught:
        probe(f"http://user:{CANARY}@127.0.0.1:{port}")
    assert time.monotonic() - began < 3.5
    assert CANARY not in str(caught.value)
    assert str(port) in str(caught.value)
    assert "tracking.offline" in str(caught.value)


def test_a_server_that_never_answers_is_found_out_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(EnvironmentFault, match="does not answer"):
            probe(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert 2.5 < time.monotonic() - began < 3.5


def test_a_name_that_takes_long_to_look_up_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(5))
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=r"no answer within 0\.3 s"):
        probe("http://some-host:5000", timeout_seconds=0.3)
    assert time.monotonic() - began < 1


def test_a_real_server_passes(server_uri: str) -> None:
    probe(server_uri)


@pytest.mark.parametrize(("status", "reason"), [(401, "refuses the credentials"), (404, "no MLflow"), (503, "answer")])
def test_a_server_that_answers_with_an_error(proxy: FaultyProxy, status: int, reason: str) -> None:
    proxy.order(status, "/health", 1)
    with pytest.raises(EnvironmentFault, match=reason):
        probe(proxy.uri)


def test_some_other_server_is_not_taken_for_mlflow(proxy: FaultyProxy) -> None:
    proxy.order(200, "/health", 1)
    with pytest.raises(EnvironmentFault, match="no MLflow server"):
        probe(proxy.uri)


def test_a_database_is_checked_without_creating_it(tmp_path: Path) -> None:
    probe(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EnvironmentFault, match="does not exist"):
        probe(f"sqlite:///{tmp_path}/nowhere/mlflow.db")
    (tmp_path / "text.db").write_text("this is no database, but it is long enough")
    with pytest.raises(EnvironmentFault, match="no SQLite database"):
        probe(f"sqlite:///{tmp_path}/text.db")


def test_a_folder_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere, so the answer is made up
    with pytest.raises(EnvironmentFault, match="not writable"):
        probe(f"sqlite:///{tmp_path}/mlflow.db")


def database_of(path: Path, *statements: str) -> str:
    """The address of a database made by these statements."""
    with closing(sqlite3.connect(path)) as made:
        for statement in statements:
            made.execute(statement)
        made.commit()
    return f"sqlite:///{path}"


VERSIONS = "CREATE TABLE alembic_version (version_num TEXT)"


def test_a_database_of_another_program_or_of_a_newer_mlflow_is_refused(tmp_path: Path) -> None:
    other = database_of(tmp_path / "other.db", "CREATE TABLE songs (title TEXT)")
    newer = database_of(
        tmp_path / "newer.db",
        "CREATE TABLE experiments (name TEXT)",
        VERSIONS,
        "INSERT INTO alembic_version VALUES ('fffffffffff0')",
    )
    for uri in (other, newer):
        with pytest.raises(EnvironmentFault, match="another program or of a newer MLflow; move it away"):
            probe(uri)


def test_a_database_of_this_or_an_older_mlflow_passes(tmp_path: Path) -> None:
    older = "INSERT INTO alembic_version VALUES ('451aebb31d03')"
    probe(database_of(tmp_path / "old er?.db", VERSIONS, older).replace("?", "%3F"))
    probe(database_of(tmp_path / "half.db", "CREATE TABLE experiments (name TEXT)"))
    probe(database_of(tmp_path / "empty.db", VERSIONS, "DROP TABLE alembic_version"))


def test_the_embedded_store_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "50%41 c#d q?x"
    assert sqlite_file(tracking_uri(TrackingConfig(), folder)) == folder / "mlflow.db"
    assert sqlite_file(tracking_uri(TrackingConfig(uri="sqlite:///own.db"), folder)) == folder / "own.db"
