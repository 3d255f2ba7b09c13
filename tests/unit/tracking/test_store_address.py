"""Which store is chosen, how a database is checked without MLflow, and links."""

import os
import socket
import sqlite3
import threading
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.config.sections import TrackingConfig
from paceline.errors import BAD_CONFIG, BAD_ENVIRONMENT, ConfigError, EnvironmentFault
from paceline.tracking.mlflow_database import sqlite_uri
from paceline.tracking.mlflow_probe import LONGEST, cause_text, is_silence, probe
from paceline.tracking.mlflow_server import free_port, ui
from paceline.tracking.model_registry import check_name
from paceline.tracking.tracking_uri import run_url, sqlite_file, tracking_uri
from support.golden import Golden

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


@pytest.mark.parametrize("name", ["a b", "50%41", "c#d", "q?x", "日本 ü", "p+l@u:s;t&k=v'\"[x]{y}\\z"])
def test_an_address_leads_to_its_file_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    from sqlalchemy.engine import make_url

    folder = tmp_path / name
    assert make_url(sqlite_uri(folder / "mlflow.db")).database == str(folder / "mlflow.db")
    assert sqlite_file(tracking_uri(TrackingConfig(), folder)) == folder / "mlflow.db"
    assert sqlite_file(tracking_uri(TrackingConfig(uri="sqlite:///own.db"), folder)) == folder / "own.db"


@pytest.mark.parametrize(
    "uri", ["./mlruns", "file:///tmp/mlruns", "ftp://x/y", "sqlite://", "sqlite:///:memory:", "http://", "http://h:x"]
)
def test_an_address_that_cannot_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, golden: Golden
) -> None:
    with pytest.raises(ConfigError) as of_config:
        tracking_uri(TrackingConfig(uri=uri), tmp_path)
    [problem] = of_config.value.problems
    assert (problem.code, problem.key, of_config.value.exit_code) == ("tracking-uri", "tracking.uri", BAD_CONFIG)
    assert problem.hint
    golden(str(problem))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(EnvironmentFault) as of_variable:
        tracking_uri(TrackingConfig(), tmp_path)
    assert (of_variable.value.code, of_variable.value.exit_code) == ("tracking-uri", BAD_ENVIRONMENT)
    assert of_variable.value.fields == {"variable": "MLFLOW_TRACKING_URI"}


def test_links_hold_no_credentials(tmp_path: Path) -> None:
    page = "#/experiments/7/runs/abc?workflowType=machine_learning"
    assert run_url(f"http://u:{CANARY}@host:5000/ml/", "7", "abc") == f"http://host:5000/ml/{page}"
    assert run_url(f"sqlite:///{tmp_path}/mlflow.db", "7", "abc") == f"http://127.0.0.1:5000/{page}"


@pytest.mark.parametrize("name", ["a/b", "", "a" * 201, "50%", ". ."])
def test_a_name_that_mlflow_takes_for_no_registered_model_is_refused(name: str) -> None:
    check_name("my digits #1?")
    with pytest.raises(ConfigError) as caught:
        check_name(name)
    assert [problem.code for problem in caught.value.problems] == ["register"]


# Checked before anything starts


def fault_of(uri: str, timeout_seconds: float = 10.0) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as caught:
        probe(uri, timeout_seconds=timeout_seconds)
    return caught.value


def database_of(path: Path, *statements: str) -> str:
    """The address of a database made by these statements."""
    with closing(sqlite3.connect(path)) as made:
        for statement in statements:
            made.execute(statement)
        made.commit()
    return sqlite_uri(path)


VERSIONS = "CREATE TABLE alembic_version (version_num TEXT)"
EXPERIMENTS = "CREATE TABLE experiments (name TEXT)"


def test_a_missing_database_passes_and_is_not_created(tmp_path: Path) -> None:
    probe(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_this_or_an_older_mlflow_passes(tmp_path: Path) -> None:
    probe(database_of(tmp_path / "old er?.db", VERSIONS, "INSERT INTO alembic_version VALUES ('451aebb31d03')"))
    probe(database_of(tmp_path / "half.db", EXPERIMENTS))
    probe(database_of(tmp_path / "empty.db", VERSIONS, "DROP TABLE alembic_version"))


def test_a_database_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "text.db").write_text("this is no database, but it is long enough")
    (tmp_path / "folder.db").mkdir()
    newer = "INSERT INTO alembic_version VALUES ('fffffffffff0')"
    uris = {
        "nowhere": (f"sqlite:///{tmp_path}/nowhere/mlflow.db", "no-database-folder"),
        "text": (f"sqlite:///{tmp_path}/text.db", "not-a-database"),
        "folder": (f"sqlite:///{tmp_path}/folder.db", "database-not-writable"),
        "other": (database_of(tmp_path / "other.db", "CREATE TABLE songs (title TEXT)"), "foreign-database"),
        "newer": (database_of(tmp_path / "newer.db", EXPERIMENTS, VERSIONS, newer), "foreign-database"),
    }
    for name, (uri, code) in uris.items():
        fault = fault_of(uri)
        assert (name, fault.code) == (name, code)
        golden(str(fault), name)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere, so the answer is made up
    fault = fault_of(f"sqlite:///{tmp_path}/mlflow.db")
    assert (fault.code, fault.fields) == ("database-not-writable", {"path": tmp_path})


def test_a_name_that_takes_long_to_look_up_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(60))
    began = time.monotonic()
    assert fault_of("http://some-host:5000", timeout_seconds=0.2).code == "mlflow-not-answering"
    assert time.monotonic() - began < 30
    ended.set()


def test_no_runs_yet_is_an_error_of_the_environment(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        ui(f"sqlite:///{tmp_path}/mlflow.db")
    assert (caught.value.code, caught.value.fields) == ("no-database", {"path": tmp_path / "mlflow.db"})
    golden(str(caught.value))


def test_the_next_free_port_is_taken_and_any_for_0() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < free_port(port) < port + 20
    assert 1024 <= free_port(0) <= 65_535


# Why MLflow cannot be reached


def chained(*errors: Exception) -> Exception:
    """The last of the errors, each the context of the next one."""
    for sooner, later in pairwise(errors):
        later.__context__ = sooner
    return errors[-1]


def test_the_first_cause_is_reported_in_few_words(golden: Golden) -> None:
    silence = chained(ConnectionRefusedError(111, "Connection refused"), OSError("retries"), ValueError("API " * 200))
    other = ValueError("no such experiment (Caused by X)\nand what not")
    assert (is_silence(silence), is_silence(other)) == (True, False)
    assert cause_text(silence) == cause_text(ConnectionRefusedError(111, "Connection refused"))
    golden(cause_text(silence), "silent")
    golden(cause_text(other), "other")
    golden(cause_text(ValueError("API request failed with error code 401"), f"http://me:{CANARY}@host"), "refused")
    assert CANARY not in cause_text(ValueError(f"no login at http://me:{CANARY}@host"))
    assert len(cause_text(ValueError("x" * 1000))) == LONGEST
