"""The warning that other programs use the machine."""

from collections.abc import Mapping
from typing import Any

import pytest

from paceline.bench import machine_load
from paceline.bench.machine_load import warn_of_load
from paceline.tuneups.display import SilentWatcher


class Warned(SilentWatcher):
    """Keeps the codes of warnings."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        self.codes.append(f"{kind} {details['code']}")


@pytest.mark.parametrize(
    ("percent", "address", "warns"), [(3.0, None, False), (80.0, None, True), (80.0, "10.0.0.1:6379", False)]
)
def test_a_busy_machine_is_a_warning_and_a_note(
    percent: float, address: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_load.psutil, "cpu_percent", lambda interval: percent)
    listener = Warned()
    notes = warn_of_load(address, listener)
    assert listener.codes == ["warning machine-busy"] * warns
    assert ["80 %" in note for note in notes] == [True] * warns
