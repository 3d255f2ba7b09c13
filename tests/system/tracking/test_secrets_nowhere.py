"""Secrets of the environment, the config and of addresses are found nowhere: every byte that is left is looked at."""

import json
from html import escape
from pathlib import Path
from stat import S_IMODE
from unittest.mock import patch
from urllib.parse import quote

import pytest

from paceline.tracking import markdown
from support.tracking.canaries import (
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
from support.tracking.server import SharedServer

ARGUMENT_OF_KEY = f"model.args.api_key={KEY}"


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return made_in(tmp_path)


def train_twice(workplace: Workplace, naked: bool = False) -> None:
    """A run that finishes, and one of the user's script that fails; secrets are on both command lines."""
    assert workplace.run("train", "tiny.yaml", ARGUMENT_OF_KEY, "--json", naked=naked) == 0, workplace.said.decode()
    assert workplace.run_script(ARGUMENT_OF_KEY, "name=failing", naked=naked, MISTAKE="1") == 1
    assert b"no login with" in workplace.said


def test_runs_leave_no_secret_on_a_server_whose_address_has_a_password(
    workplace: Workplace, shared_server: SharedServer
) -> None:
    address = shared_server.uri.replace("://", f"://me:{quote(TRACKING, safe='')}@")
    workplace.environment = {**workplace.environment, "MLFLOW_TRACKING_URI": address}
    train_twice(workplace)
    assert shared_server.uri.encode() in workplace.said
    assert workplace.run("report", "failing") == 0, workplace.said.decode()
    assert list(workplace.folder.rglob("report.html"))
    assert (shared_server.folder / "mlflow.db").exists()
    assert found_in(workplace, shared_server.folder) == []
    own_files = [file for name in OWN_FILES for file in workplace.folder.rglob(name)]
    kept = [file for file in own_files if json.dumps(KEY)[1:-1] in file.read_text()]
    assert {file.name for file in kept} == {"run.json"}
    assert {S_IMODE(file.stat().st_mode) for file in kept} == {0o600}


@pytest.mark.slow
@pytest.mark.parametrize("naked", [False, True], ids=["with redaction", "without redaction"])
def test_only_without_redaction_runs_leave_secrets_in_a_database(
    workplace: Workplace, prepared_database: Path, naked: bool
) -> None:
    (workplace.folder / "mlflow.db").write_bytes(prepared_database.read_bytes())
    train_twice(workplace, naked)
    assert workplace.run("train", "tiny.yaml", ARGUMENT_OF_KEY, "--dry-run", naked=naked) == 0
    found = found_in(workplace)
    assert {each.canary for each in found} == ({ENVIRONMENT, KEY, ARGUMENT, ADDRESS} if naked else set())
    places = {"mlflow.db", "journal.jsonl", "record.json", "printed"} if naked else set()
    assert {Path(each.place).name for each in found} >= places


@pytest.mark.parametrize("canary", CANARIES)
def test_a_secret_is_found_however_it_is_written(canary: str) -> None:
    with patch.object(markdown, "redact", lambda text: text):
        shown = markdown.escaped(canary)  # as in a note that nobody has taken secrets out of
    forms = [
        *(canary, shown, json.dumps(shown), escape(canary), json.dumps(canary), quote(canary)),
        *(canary[:-5], canary[5:]),
    ]
    assert [canaries_in(f"some {form} text".encode()) for form in forms] == [[canary]] * len(forms)
    assert canaries_in(b"some *** text") == []
