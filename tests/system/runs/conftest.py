"""What tests of finished runs share: a storage, a database, and short time-outs."""

import shutil
from pathlib import Path

import pytest

from paceline.review import sync as syncing
from paceline.tracking import backoff, shipping


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("URI", "TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{variable}", raising=False)
    monkeypatch.setattr(shipping, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.2)
    monkeypatch.setattr(syncing, "PATIENCE_SECONDS", 3.0)


@pytest.fixture
def database(prepared_database: Path, tmp_path: Path) -> Path:
    """A fresh database of the test's own."""
    return Path(shutil.copy(prepared_database, tmp_path / "mlflow.db"))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """The folder for runs."""
    return tmp_path / "runs"
