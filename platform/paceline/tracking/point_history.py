"""The points of runs, read from their journals: for pictures and tables of runs that may be over, or still going on."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_recorder import JOURNAL_FILE

_POINT = b'"kind":"point"'


class Histories(Mapping[str, list[MetricPoint]]):
    """The points of several runs by id, each read from its journal when it is asked for, and kept."""

    def __init__(self, folders: Mapping[str, Path], keys: Collection[str] | None = None) -> None:
        """Read nothing yet.

        Args:
            folders: by id, the folder of the run's recorder.
            keys: the metrics to read; by default all.
        """
        self._folders = folders
        self._keys = keys
        self._read: dict[str, list[MetricPoint]] = {}

    def __getitem__(self, run_id: str) -> list[MetricPoint]:
        if run_id not in self._read:
            self._read[run_id] = read_points(self._folders[run_id], self._keys)
        return self._read[run_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


def read_points(folder: Path, keys: Collection[str] | None = None) -> list[MetricPoint]:
    """All points in a recorder's folder, in the order they came; none where there is no journal.

    A line that a crash has torn, or that is damaged, is passed over.

    Args:
        folder: the one that a `Recorder` was opened with.
        keys: the metrics to read; by default all. The fewer, the faster.

    Raises:
        OSError: the journal is there, but cannot be read.
    """
    marks = None if keys is None else [b'"key":' + json.dumps(key).encode() + b"," for key in keys]
    try:
        with (folder / JOURNAL_FILE).open("rb") as file:
            # what cannot be meant is left out before it is parsed: that takes most of the time
            lines = [line for line in file if _POINT in line and (marks is None or any(mark in line for mark in marks))]
    except FileNotFoundError:
        return []
    return [point for line in lines if (point := _parse(line)) is not None and (keys is None or point.key in keys)]


def _parse(line: bytes) -> MetricPoint | None:
    if not line.endswith(b"\n"):  # torn, and about to be cut off
        return None
    try:
        return MetricPoint.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
