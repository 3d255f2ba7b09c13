"""The state that MLflow should have by now: a store restored from a backup has lost the newest of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._compat.mlflow import newest_steps
from paceline.tracking.journal import Journal
from paceline.tracking.journal_entries import Content
from paceline.tracking.metric_points import MetricPoint

if TYPE_CHECKING:
    from mlflow.entities import Run

MOST_REFUSED = 100
"""Of what was refused, as many are known by name; of which there are more, nobody knows what MLflow should have."""


class UploadedState:
    """What the uploaded part of a journal comes to. Reads on where it stopped the last time."""

    def __init__(self) -> None:
        self._offset = 0
        self._status = ""
        self._steps: dict[str, int] = {}

    def is_lost(self, run: "Run", journal: Journal, offset: int, refused: Sequence[str]) -> bool:
        """Whether MLflow's run lacks points that were uploaded, or says something else of how the run stands.

        Args:
            offset: as far was the journal uploaded.
            refused: what MLflow will never take, as `MlflowRun.log` tells it.
        """
        self._read(journal, offset)
        if self._status and run.info.status != self._status:
            return True
        if len(refused) >= MOST_REFUSED:
            return False
        has = newest_steps(run)
        if has is None:
            return False
        return any(has.get(key, -1) < step for key, step in self._steps.items() if not _is_among(key, refused))

    def _read(self, journal: Journal, offset: int) -> None:
        if offset < self._offset:
            self.__init__()  # type: ignore[misc]
        for entry in journal.read(self._offset, offset):
            if entry.kind == "status":
                self._status = entry.content["status"]
            elif entry.kind == "point":
                self._take(entry.content)
        self._offset = offset

    def _take(self, content: Content) -> None:
        point = MetricPoint.from_json(content)
        if not point.is_infinite:  # MLflow is not sent these
            self._steps[point.key] = max(point.step, self._steps.get(point.key, -1))


def _is_among(key: str, refused: Sequence[str]) -> bool:
    return any(each.startswith(f"{key[:100]} at step ") for each in refused)
