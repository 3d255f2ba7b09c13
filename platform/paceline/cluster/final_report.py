"""The end of training: the last message of rank 0, and the file in which the coordinator keeps it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.durable import write_durably
from paceline.redaction import redact_tree
from paceline.storage.address import OUTCOME
from paceline.tracking.metric_points import MetricReading

_UNRECORDED = "unrecorded"
_LOST = "lost"
HINT_OF_UNRECORDED = "`paceline sync` takes up those that the newest checkpoint keeps"


class FinalReport(NamedTuple):
    """End of training, with the readings that the coordinator may lack."""

    ending: dict[str, Any]
    """End of training, as `run_rank` returns it."""
    unrecorded: Sequence[MetricReading] = ()
    """Readings that the coordinator has not confirmed as safe, in the order of the steps."""
    lost: int = 0
    """Number of readings that were dropped, since the coordinator had been away for too long."""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> "FinalReport":
        """Read the mapping of `message`; an ending without these additions is accepted, too."""
        ending = {key: value for key, value in message.items() if key not in (_UNRECORDED, _LOST)}
        return cls(ending, message.get(_UNRECORDED, ()), message.get(_LOST, 0))

    def message(self) -> dict[str, Any]:
        """Return everything as one mapping, for a coordinator's `finish`."""
        return {**self.ending, _UNRECORDED: list(self.unrecorded), _LOST: self.lost}


def lost_text(readings: int) -> str:
    """Return the warning about readings that were dropped."""
    return f"{readings} readings of metrics were dropped: what records them did not take any for too long"


def unrecorded_text(step: int) -> str:
    """Return the warning about metrics that could not be recorded, from an optimizer step on."""
    return f"the metrics from step {step} on could not be recorded, and are lost; {HINT_OF_UNRECORDED}"


def write_outcome(folder: Path, ending: Mapping[str, Any]) -> None:
    """Write down the end of training, for a coordinator or a command that has to start again.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_durably(folder / OUTCOME, json.dumps(ending).encode())


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Return the end of training that a coordinator wrote down; None if it wrote none, or if the file is damaged."""
    try:
        outcome = json.loads((folder / OUTCOME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return outcome if isinstance(outcome, dict) and _is_whole(outcome) else None


def _is_whole(outcome: Mapping[str, Any]) -> bool:
    """Return True if the entries of an outcome have the expected types."""
    counts = [outcome[name] for name in ("step", "epoch", "samples", "peak_memory_bytes") if name in outcome]
    values, failure = outcome.get("metrics", {}), outcome.get("failure", {})
    return (
        isinstance(outcome.get("status"), str)
        and all(isinstance(count, int) for count in counts)
        and isinstance(outcome.get("samples_per_second", 0.0), (int, float))
        and isinstance(values, dict)
        and all(isinstance(value, (int, float)) for value in values.values())
        and isinstance(failure, dict)
        and isinstance(failure.get("reason", ""), str)
    )


def forget_outcome(folder: Path) -> None:
    """Remove what the coordinator of an earlier launch of the same run wrote down.

    Raises:
        OSError: the folder cannot be written to.
    """
    (folder / OUTCOME).unlink(missing_ok=True)


def without_secrets(ending: dict[str, Any]) -> dict[str, Any]:
    """Return the end of training without secrets of the command line, which a worker does not know."""
    return {**ending, "failure": redact_tree(ending["failure"])} if "failure" in ending else ending
