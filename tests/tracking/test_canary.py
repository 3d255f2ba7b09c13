"""Secrets of the environment, the config and of addresses are found nowhere: every byte that is left is looked at."""

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from stat import S_IMODE
from unittest.mock import patch
from urllib.parse import quote

import pytest

from paceline.tracking import note
from tracking.canaries import (
    ADDRESS,
    ARGUMENT,
    CANARIES,
    ENVIRONMENT,
    KEY,
    OWN_FILES,
    TRACKING,
    Workplace,
    canaries_in,
    found_in,
    made_in,
)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return made_in(tmp_path)


@pytest.fixture
def sqlite(workplace: Workplace, prepared_database: Path) -> Workplace:
    """With the database of its own folder."""
    (workplace.folder / "mlflow.db").write_bytes(prepared_database.read_bytes())
    return workplace


@pytest.fixture
def on_server(workplace: Workplace, server_uri: str) -> Workplace:
    """With a real server, whose address has a password in it."""
    address = server_uri.replace("://", f"://me:{quote(TRACKING, safe='')}@")
    workplace.environment = {**workplace.environment, "MLFLOW_TRACKING_URI": address}
    return workplace


def train_twice(workplace: Workplace, naked: bool = False) -> None:
    """A run that finishes, and one of the user's script that fails; secrets are on both command lines."""
    key = f"model.args.api_key={KEY}"
    assert workplace.run("train", "tiny.yaml", key, "--json", naked=naked) == 0, workplace.said.decode()
    assert workplace.run_script(key, "name=failing", naked=naked, MISTAKE="1") == 1
    assert b"no login with" in workplace.said


def own_files(workplace: Workplace) -> Iterator[Path]:
    for name in OWN_FILES:
        yield from workplace.folder.rglob(name)


def test_runs_leave_no_secret_in_a_database(sqlite: Workplace) -> None:
    train_twice(sqlite)
    assert sqlite.run("train", "tiny.yaml", f"model.args.api_key={KEY}", "--dry-run") == 0
    assert sqlite.run("report", "failing") == 0, sqlite.said.decode()
    assert list(sqlite.folder.rglob("report.html"))
    assert found_in(sqlite) == []
    kept = [file for file in own_files(sqlite) if json.dumps(KEY)[1:-1] in file.read_text()]
    assert {file.name for file in kept} == {"run.json"}
    assert {S_IMODE(file.stat().st_mode) for file in kept} == {0o600}


def test_runs_leave_no_secret_on_a_server(on_server: Workplace, tmp_path_factory: pytest.TempPathFactory) -> None:
    servers = list(tmp_path_factory.getbasetemp().glob("server*"))
    assert servers
    train_twice(on_server)
    assert b"http://127.0.0.1" in on_server.said
    assert found_in(on_server, *servers) == []


def test_without_redaction_the_secrets_would_be_found(sqlite: Workplace) -> None:
    train_twice(sqlite, naked=True)
    found = found_in(sqlite)
    assert {each.canary for each in found} == {ENVIRONMENT, KEY, ARGUMENT, ADDRESS}
    assert {Path(each.place).name for each in found} >= {"mlflow.db", "journal.jsonl", "record.json", "printed"}


@pytest.mark.parametrize("canary", CANARIES)
def test_a_secret_is_found_however_it_is_written(canary: str) -> None:
    shown = escaped_without_redaction(canary)
    forms = [
        canary,
        shown,
        json.dumps(shown),
        escape(canary),
        json.dumps(canary),
        quote(canary),
        canary[:-5],
        canary[5:],
    ]
    assert [canaries_in(f"some {form} text".encode()) for form in forms] == [[canary]] * len(forms)
    assert canaries_in(b"some *** text") == []


def escaped_without_redaction(text: str) -> str:
    """As in a note that nobody has taken secrets out of."""
    with patch.object(note, "redact", lambda text: text):
        return note.escaped(text)
