"""A sweep's desk with players around it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.desk import books
from paceline.tracking import shipping
from sweeps.desk_players import Floor


@pytest.fixture
def floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Floor]:
    """Makes a desk, with groups, whose MLflow does not answer."""
    monkeypatch.setattr(books, "CHILD_CLOSE_SECONDS", 0.05)
    # it is not even imported: what is tested is that nothing waits for it
    monkeypatch.setattr(shipping.Shipper, "_open", _refuse)
    return lambda **given: Floor(tmp_path / "sweep", **given)


def _refuse(self: Any) -> None:
    raise ConnectionError("MLflow does not answer")
