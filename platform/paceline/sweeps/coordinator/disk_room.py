"""How a sweep judges its disks, by the trials that found no room on one."""

from collections.abc import Callable
from pathlib import Path

from paceline.full_disk import has_room

MOST_IN_A_ROW = 2
"""How many trials may find a disk full, with none between them that finished, before the sweep stops."""


class DiskRoom:
    """Counts the trials that found no room.

    The sweep continues after the first one, which may have needed more than others, or have run on a node of its own.
    It stops at once when the sweep's own folder takes nothing more.
    """

    def __init__(self, folder: Path, probe: Callable[[Path], bool] = has_room) -> None:
        self.reason = ""
        """Why trials are left for a later launch, in the words of the newest one; empty when none is."""
        self._folder, self._probe = folder, probe
        self._in_a_row = 0

    def was_found(self) -> None:
        """A trial has finished, and saved its state."""
        self._in_a_row = 0

    def was_lacking(self, reason: str) -> bool:
        """Count a trial that found a disk full; returns True if the sweep is to stop."""
        self.reason = reason
        self._in_a_row += 1
        return self._in_a_row >= MOST_IN_A_ROW or not self._probe(self._folder)
