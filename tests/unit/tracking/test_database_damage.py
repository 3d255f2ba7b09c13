"""Damage to a database file, found without MLflow."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from paceline.tracking import mlflow_probe
from paceline.tracking.mlflow_probe import damage_of, damaged_text


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "with space" / "mlflow.db"
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as opened:
        opened.execute("CREATE TABLE metrics (key TEXT, value FLOAT)")
        opened.executemany("INSERT INTO metrics VALUES (?, ?)", [(f"train/{n}", n) for n in range(3000)])
        opened.commit()
    return file


def spoil_the_head(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"garbage!" * 2)


def spoil_a_page(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size - 4096)
        opened.write(b"\xa5" * 4096)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.parametrize("damage", [spoil_the_head, spoil_a_page, cut])
def test_a_damaged_database_is_named(database: Path, damage: Callable[[Path], None]) -> None:
    assert damaged_text(database) is None
    damage(database)
    for text in (damaged_text(database), damage_of(f"sqlite:///{database}", "abc")):
        assert text is not None
        assert str(database) in text


@pytest.mark.parametrize("remove", [Path.unlink, empty])
def test_a_removed_database_lacks_what_it_was_sent_and_can_be_made_again(
    database: Path, remove: Callable[[Path], None]
) -> None:
    remove(database)
    assert damage_of(f"sqlite:///{database}", "abc") is not None
    assert damage_of(f"sqlite:///{database}", None) is None, "nothing was sent"
    assert damaged_text(database) is None
    assert database.exists() == (remove is empty), "it is not created by the look"


def test_a_server_has_to_know_by_itself() -> None:
    assert damage_of("http://127.0.0.1:9", "abc") is None


def test_a_locked_database_is_not_damaged(database: Path) -> None:
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert damaged_text(database) is None


def test_a_large_database_is_not_read_as_a_whole(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_a_page(database)
    monkeypatch.setattr(mlflow_probe, "LARGEST_BYTES", 4096)
    assert damaged_text(database) is None
    spoil_the_head(database)
    assert damaged_text(database) is not None
