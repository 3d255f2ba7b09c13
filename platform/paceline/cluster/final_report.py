"""The last message of rank 0: how training ended, with the metrics that could not be delivered before."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paceline.tracking.metric_points import MetricReading

_UNRECORDED = "unrecorded"
_LOST = "lost"


class FinalReport(NamedTuple):
    """How training ended, and what the coordinator may not have."""

    ending: dict[str, Any]
    """As `run_rank` tells it."""
    unrecorded: Sequence[MetricReading] = ()
    """What the coordinator has not said to be safe, in the order of the steps."""
    lost: int = 0
    """How many readings were let go, since the coordinator had been away for too long."""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> "FinalReport":
        """The inverse of `message`; an ending that nothing was added to is one, too."""
        ending = {key: value for key, value in message.items() if key not in (_UNRECORDED, _LOST)}
        return cls(ending, message.get(_UNRECORDED, ()), message.get(_LOST, 0))

    def message(self) -> dict[str, Any]:
        """One mapping of it all, for a coordinator's `finish`."""
        return {**self.ending, _UNRECORDED: list(self.unrecorded), _LOST: self.lost}


def lost_text(readings: int) -> str:
    """What is said of readings that were let go."""
    return f"{readings} readings of metrics were let go: what records them did not take any for too long"
