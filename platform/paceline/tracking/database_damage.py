"""Damage to the file of an embedded MLflow database: found by SQLite itself, without MLflow."""

import sqlite3
from contextlib import closing
from pathlib import Path

from paceline.tracking.tracking_uri import sqlite_file

LARGEST_BYTES = 1 << 28
"""Larger databases are not read as a whole, which would take seconds."""
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Names that errors about a damaged file begin with. Others, such as that of a locked one, say nothing about it."""


def damage_of(uri: str, run_id: str | None) -> str | None:
    """Return what is wrong with the database that a run was sent to; None for nothing, and for a server.

    Sending need not notice: SQLite reads no page that it does not need.

    Args:
        uri: MLflow's address.
        run_id: MLflow's id of the run; None or empty for one that was not sent.
    """
    file = sqlite_file(uri) if run_id else None
    if file is None:
        return None
    if not file.exists() or not file.stat().st_size:
        return f"the database {file} was removed, or is empty"
    return damaged_text(file)


def damaged_text(file: Path) -> str | None:
    """Return what to do about a database file that is damaged; None for one that is not, or is missing."""
    try:
        found = _check(file) if file.exists() else "ok"
    except sqlite3.DatabaseError as error:
        if not str(getattr(error, "sqlite_errorname", "")).startswith(_DAMAGED):
            return None
        found = str(error)
    return None if found == "ok" else f"the database {file} is damaged ({found.splitlines()[0]}): move it away first"


def _check(file: Path) -> str:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1.0)) as opened:
        if file.stat().st_size > LARGEST_BYTES:
            opened.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return "ok"
        (found,) = opened.execute("PRAGMA quick_check(1)").fetchone()
    return str(found)
