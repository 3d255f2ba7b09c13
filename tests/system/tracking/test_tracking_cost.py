"""What recording costs the process that trains. `jobs/benchmarks/tracking_cost.py` measures it thoroughly."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from paceline.cluster.reporters import InProcessReporter
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.config.experiment import validate
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
from support.tracking.recording import DEAD

SHARE = 0.01
"""Of a step, at the most, for recording."""


@contextmanager
def reporter_to(folder: Path, uri: str) -> Iterator[tuple[InProcessReporter, RunCoordinator]]:
    coordinator = RunCoordinator(
        folder, RunRecord("cost", "cost", uri, "cost", picture=False), uploads_in_own_process=True
    )
    coordinator.start_uploading()
    reporter = InProcessReporter(coordinator, lambda: None)
    try:
        yield reporter, coordinator
    finally:
        reporter.close()
        coordinator.abandon()


class Timed:
    """A reporter that takes the time within each of its calls, and when the calls for metrics were made."""

    def __init__(self, inner: InProcessReporter) -> None:
        self._inner = inner
        self.steps: list[float] = []
        """When each step was reported."""
        self.spent: list[float] = [0.0]
        """Seconds within calls, from one step to the next."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*given, **named)
            finally:
                self.spent[-1] += time.perf_counter() - began
                if name == "metrics":
                    self.steps.append(began)
                    self.spent.append(0.0)

        return timed


def test_training_spends_less_than_a_hundredth_of_its_steps_on_recording(tmp_path: Path, sqlite_uri: str) -> None:
    """Every step is recorded, and sent to MLflow while training goes on. Medians: others use these cores, too."""
    data = {"name": "synthetic", "shape": [1, 28, 28], "num_samples": 1920, "global_batch_size": 32}
    sections = {"trainer": {"epochs": 1, "log_every_n_steps": 1}, "scaling": {"num_workers": 0}}
    config = validate({"name": "share", "model": {"name": "cnn", "in_channels": 1}, "data": data, **sections})
    with reporter_to(tmp_path / "tracking", sqlite_uri) as (reporter, coordinator):
        timed = Timed(reporter)
        build_trainer(config, DistContext.current(), timed).fit()  # type: ignore[arg-type]  # it passes everything on
    assert len(timed.steps) >= 60
    assert len(list(coordinator.history())) > 5 * len(timed.steps)
    step_seconds = statistics.median(later - sooner for sooner, later in pairwise(timed.steps))
    assert statistics.median(timed.spent[:-1]) < SHARE * step_seconds


def test_nobody_who_trains_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, is_disk_ready = RunRecorder.append, Event()

    def append_later(recorder: RunRecorder, points: Any) -> int:
        assert is_disk_ready.wait(240)
        return append(recorder, points)

    monkeypatch.setattr(RunRecorder, "append", append_later)
    monkeypatch.setattr(RunRecorder, "start_uploading", lambda recorder: None)
    with reporter_to(tmp_path / "tracking", DEAD) as (reporter, coordinator):
        for step in range(200):
            reporter.metrics(step, {"train/loss": 1.0})
        assert list(coordinator.history()) == []
        is_disk_ready.set()
        assert reporter.recorded(240)
        assert len(list(coordinator.history())) == 200
