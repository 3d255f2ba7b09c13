"""The last recorded step of each metric, so that replayed steps are recorded once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from paceline.redaction import redact
from paceline.tracking.journal import JOURNAL_FILE, Entry, Journal
from paceline.tracking.metric_points import MetricPoint


def fresh_points(marks: dict[str, int], points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Those of the points that are new, each key without secrets; raises the marks to them.

    Args:
        marks: the last step of each key.
    """
    return [point for point in map(_with_clean_key, points) if raise_mark(marks, point)]


def raise_mark(marks: dict[str, int], point: MetricPoint) -> bool:
    """Raise the key's mark to the point's step; False when it is there already."""
    mark = marks.get(point.key)
    if mark is not None and point.step <= mark:
        return False
    marks[point.key] = point.step
    return True


def append_late(folder: Path, points: Sequence[MetricPoint]) -> int:
    """Add points to a record that nobody has open, and that stays as it is for the rest: ended, if it has ended.

    Args:
        folder: the recorder's folder.

    Returns:
        How many were new.

    Raises:
        OSError: the folder cannot be written to; none of the points was added.
    """
    marks: dict[str, int] = {}

    def take(entry: Entry) -> None:
        if entry.kind == "point":
            raise_mark(marks, MetricPoint.from_json(entry.content))

    journal = Journal(folder / JOURNAL_FILE, take)
    try:
        with journal.alone():  # reads all that there is
            fresh = fresh_points(marks, points)
            journal.append([("point", point.to_json()) for point in fresh])
    finally:
        journal.close()
    return len(fresh)


@lru_cache(4096)
def _clean_key(key: str) -> str:
    # a lone surrogate, from the bad byte of a file name, would keep all metrics out of MLflow
    return redact(key).encode("utf-8", "backslashreplace").decode()


def _with_clean_key(point: MetricPoint) -> MetricPoint:
    """A task of the user's may name its metrics as it likes."""
    key = _clean_key(point.key)
    return point if key == point.key else replace(point, key=key)
