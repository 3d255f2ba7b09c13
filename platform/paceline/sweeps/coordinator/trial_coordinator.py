"""The coordinator of one trial, within that of its sweep."""

import time
from collections.abc import Mapping
from typing import Any

from paceline.cluster.run_coordinator import RunCoordinator
from paceline.sweeps.coordinator.tracebacks import kept_text
from paceline.sweeps.results.labels import is_number
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint

TRACEBACK_FILE = "traceback.txt"


class TrialCoordinator(RunCoordinator):
    """A run's coordinator that also keeps why the trial failed."""

    registers_checkpoints = False  # that of the best trial is registered at the sweep's end

    def keep_traceback(self, text: str) -> None:
        """Add the traceback to the trial's record, without secrets; trouble with that is reported to the watcher.

        Args:
            text: empty: there is nothing to keep.
        """
        if not text:
            return
        try:
            self._recorder.add_artifact(TRACEBACK_FILE, kept_text(text).encode(errors="replace"))
        except OSError as error:
            message = f"{TRACEBACK_FILE} could not be written: {error}"
            self.event("warning", {"code": "traceback-not-written", "message": message})

    def note_axes(self, step: int, params: Mapping[str, Any]) -> None:
        """Add what the trial tries out to its record, as far as it is numbers: only a metric can be a chart's axis.

        Args:
            step: from which on it has these values.
        """
        now = int(time.time() * 1000)
        numbers = {key: float(value) for key, value in params.items() if key != "seed" and is_number(value)}
        points = [MetricPoint(metrics.axis_metric(key), value, step, now) for key, value in numbers.items()]
        try:
            self._recorder.append(points)
        except OSError as error:
            message = f"the axes could not be recorded: {error}"
            self.event("warning", {"code": "axes-not-recorded", "message": message})
