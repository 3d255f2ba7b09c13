"""Sweeps that are simulated: without Ray, and without an MLflow that answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.desk import books
from paceline.tracking import shipping
from support.sweeps.simulation import SimulatedSweep


@pytest.fixture
def new_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimulatedSweep]:
    """Makes a simulated sweep in the folder `sweep`; called again, a later launch of it. MLflow does not answer."""
    monkeypatch.setattr(books, "CHILD_CLOSE_SECONDS", 0.05)
    # it is not even imported: what is tested is that nothing waits for it
    monkeypatch.setattr(shipping.Shipper, "_open", _refuse)
    return lambda **given: SimulatedSweep(tmp_path / "sweep", **given)


def _refuse(self: Any) -> None:
    raise ConnectionError("MLflow does not answer")
