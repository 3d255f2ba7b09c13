"""What the desk could not take before a checkpoint was saved is in it, and outlives desk and worker."""

import time
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import outbox
from paceline.cluster.desk import Desk
from paceline.cluster.reporters import DeskReporter
from paceline.engine.build import build_trainer
from paceline.engine.ranks import Ranks
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder
from support.toys import toy_config


class StopsAt(DeskReporter):
    """Asks to stop at a step."""

    def __init__(self, desk: Desk, step: int | None = None) -> None:
        super().__init__(desk, lambda: None)
        self._stop_at, self._step = step, 0

    def metrics(self, step: int, values: Any) -> None:
        self._step = step
        super().metrics(step, values)

    def stop_requested(self) -> bool:
        return self._stop_at is not None and self._step >= self._stop_at


def train(run: Path, stop_at: int | None = None) -> Desk:
    desk = Desk(run / "tracking", RunRecord(run.name, "toy", "http://127.0.0.1:9", "toy"))
    reporter = StopsAt(desk, stop_at)
    config = toy_config(trainer__log_every_n_steps=1, checkpoint={"every_n_steps": 3})
    build_trainer(config, Ranks.current(), reporter, run / "checkpoints").fit()
    reporter.close(0.5)
    return desk


@pytest.mark.parametrize("known", [0, 2, 5])
def test_nothing_is_lost_when_the_desk_dies_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """The disk of the record takes points up to a step, as if the desk had died then; that of the checkpoints works."""
    monkeypatch.setattr(Recorder, "start_shipping", lambda self: None)
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(outbox, "READINGS_PER_DELIVERY", 1)
    append = Recorder.append

    def fails(recorder: Recorder, points: Any) -> int:
        if any(point.step > known for point in points):
            raise OSError("No space left on device")
        return append(recorder, points)

    run = tmp_path / "runs" / "toy" / "r1"
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "append", fails)
        before = train(run, stop_at=6)
        assert {step for _, _, step in before.history()} == set(range(1, known + 1))
        before.abandon()
    resumed = int(time.time() * 1000)
    desk = train(run)
    points = [point for point in desk._recorder.history() if point.key == "train/loss"]
    assert [point.step for point in points] == list(range(1, 13))
    assert [point.timestamp_ms < resumed for point in points] == [True] * 6 + [False] * 6
    whole = train(tmp_path / "runs" / "toy" / "r2")
    losses = [value for key, value, _ in whole.history() if key == "train/loss"]
    assert [point.value for point in points] == losses
