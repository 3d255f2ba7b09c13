"""What was changed when a run goes on stands in its own record, too."""

from pathlib import Path

from paceline.review.report.reading import read
from paceline.tracking import metrics
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder


def test_a_resumed_record_tells_what_params_were_changed(tmp_path: Path) -> None:
    for epochs in (6, 12, 12):
        record = RunRecord("r1", "n", "sqlite:///x.db", "e", {"trainer.epochs": epochs, "seed": 0}, picture=False)
        recorder = Recorder(tmp_path, record)
        recorder.conclude("KILLED")
        recorder.abandon()
    assert read(tmp_path).tags[metrics.CHANGED_PARAMS] == "trainer.epochs: 6 -> 12"
