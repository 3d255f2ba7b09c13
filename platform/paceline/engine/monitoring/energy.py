"""The energy that a machine's processors have taken, where Linux tells it.

Linux's files: https://docs.kernel.org/power/powercap/powercap.html
"""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_KINDS = ("package", "dram")
"""Zones that are not part of another one of them."""


class ProcessorEnergy:
    """Joules since this was made, of all processors and memory modules that have a counter which may be read."""

    def __init__(self) -> None:
        self._zones = [zone for zone in map(_zone, sorted(POWERCAP.glob("*:*"))) if zone is not None]

    def joules(self) -> float | None:
        """So far; None where the machine does not tell. To be asked at least once a minute: the counters are short."""
        if not self._zones:
            return None
        return sum(zone.joules() for zone in self._zones)


class _Zone:
    def __init__(self, folder: Path, range_microjoules: int) -> None:
        self._counter = folder / "energy_uj"
        self._range = range_microjoules
        self._last = self._read()
        self._total = 0

    def joules(self) -> float:
        try:
            now = self._read()
        except (OSError, ValueError):
            now = self._last
        gone = now - self._last
        self._total += gone if gone >= 0 else gone + self._range  # it has started again
        self._last = now
        return self._total / 1e6

    def _read(self) -> int:
        return int(self._counter.read_text())


def _zone(folder: Path) -> _Zone | None:
    try:
        if not (folder / "name").read_text().startswith(_KINDS):
            return None
        return _Zone(folder, int((folder / "max_energy_range_uj").read_text()))
    except (OSError, ValueError):  # only root may read it, on most machines
        return None
