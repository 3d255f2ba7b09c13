"""What rank 0 could not get recorded while it trained goes with how training ended: that message waits for the desk."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paceline.tracking.points import Reading

_UNRECORDED = "unrecorded"
_LOST = "lost"


class LastWords(NamedTuple):
    """How training ended, and what the desk may not have."""

    ending: dict[str, Any]
    """As `run_rank` tells it."""
    unrecorded: Sequence[Reading] = ()
    """What the desk has not said to be safe, in the order of the steps."""
    lost: int = 0
    """How many readings were let go, since the desk had been away for too long."""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> "LastWords":
        """The inverse of `message`; an ending that nothing was added to is one, too."""
        ending = {key: value for key, value in message.items() if key not in (_UNRECORDED, _LOST)}
        return cls(ending, message.get(_UNRECORDED, ()), message.get(_LOST, 0))

    def message(self) -> dict[str, Any]:
        """One mapping of it all, for a desk's `finish`."""
        return {**self.ending, _UNRECORDED: list(self.unrecorded), _LOST: self.lost}


def lost_text(readings: int) -> str:
    """What is said of readings that were let go."""
    return f"{readings} readings of metrics were let go: what records them did not take any for too long"
