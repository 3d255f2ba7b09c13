"""Runs of a folder that are recorded in another store than the one that is reviewed."""

from collections import Counter
from pathlib import Path

from paceline.redaction import redact, without_credentials
from paceline.runs.finding import runs_under
from paceline.tracking.run_record import RunRecord


def recorded_elsewhere(storage: Path, uri: str) -> list[str]:
    """A line for each other store that has runs or sweeps which are newer than the newest one of this store.

    Args:
        storage: the folder that holds the runs.
        uri: address of the store that is reviewed.
    """
    records = [record for found in runs_under(storage) if (record := _record(found.tracking)) is not None]
    own = without_credentials(uri).rstrip("/")
    newest = max((each.start_time_ms for each in records if each.uri.rstrip("/") == own), default=None)
    newer = [each.uri for each in records if each.uri.rstrip("/") != own and each.start_time_ms > (newest or 0)]
    word = "" if newest is None else "newer "
    return [_line(count, word, redact(address)) for address, count in Counter(newer).items()]


def _line(count: int, word: str, address: str) -> str:
    runs = f"{count} {word}runs of this folder are" if count > 1 else f"1 {word}run of this folder is"
    return f"{runs} on {address}"


def _record(folder: Path) -> RunRecord | None:
    try:
        return RunRecord.load(folder)
    except (OSError, ValueError, TypeError, KeyError):  # none, or damaged: `sync` reports it
        return None
