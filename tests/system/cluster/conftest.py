"""A user's folder for the tests of this room."""

from pathlib import Path

import pytest

from support.cluster.user_folder import enter_user_folder


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, with the user's code and an empty database in it."""
    return enter_user_folder(tmp_path, prepared_database, monkeypatch)
