"""Records of trials that are closed in the background."""

import asyncio
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.engine.host_allocator import return_freed_memory
from paceline.sweeps.coordinator import record_closer
from paceline.sweeps.coordinator.record_closer import CLOSINGS_PER_TRIM, RecordCloser
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder, has_ended
from paceline.tracking.upload_cursor import UploadReport
from support.cluster.coordinators import NOWHERE, no_space
from support.sweeps.simulation import SimulatedSweep, simulated

REPORT = UploadReport("http://page", "1", "run", 0, None)
SENT = {"run_id": "7", "unsent": 0, "error": ""}
BLOCKS, BLOCK_BYTES = 2000, 60_000


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.parametrize(("closings", "is_returned"), [(CLOSINGS_PER_TRIM - 1, False), (CLOSINGS_PER_TRIM, True)])
def test_memory_that_closed_records_have_freed_is_returned(closings: int, is_returned: bool) -> None:
    """What lies between blocks that stay is not returned when it is freed."""
    kept: list[bytearray] = []

    def close() -> dict[str, Any]:
        blocks = []
        for _ in range(0 if kept else BLOCKS):
            blocks.append(bytearray(BLOCK_BYTES))
            kept.append(bytearray(2000))
        return SENT

    async def close_all() -> None:
        closer = RecordCloser(NOWHERE)
        for _ in range(closings):
            closer._begin(Path(), closer._close(close, reports.append))
            await closer.finish(60.0)

    reports: list[dict[str, Any]] = []
    return_freed_memory()
    before = resident()
    asyncio.run(close_all())
    assert reports == [SENT] * closings
    assert (resident() - before < BLOCKS * BLOCK_BYTES / 4) is is_returned


@pytest.fixture
def mlflow_may_answer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds up all that is sent to MLflow; only one record at a time may wait for it with its recorder."""
    event = threading.Event()

    def answer(*_: Any) -> UploadReport:
        assert event.wait(60)
        return REPORT

    monkeypatch.setattr(record_closer, "MOST_CLOSINGS", 1)
    monkeypatch.setattr(record_closer, "silence_of", lambda *_: None)
    monkeypatch.setattr(RunRecorder, "_silence", lambda recorder: None)
    monkeypatch.setattr(MlflowUploader, "start", lambda uploader: None)
    monkeypatch.setattr(MlflowUploader, "finish", answer)
    monkeypatch.setattr(MlflowUploader, "finish_patiently", answer)
    return event


def recorders() -> list[str]:
    """Ids of the trials whose recorders are in memory."""
    gc.collect()
    found = [each._record for each in gc.get_objects() if isinstance(each, RunRecorder)]
    return sorted(record.run_id for record in found if record.parent)


@simulated()
async def test_records_that_wait_for_their_turn_have_no_recorder(
    sweep: SimulatedSweep, mlflow_may_answer: threading.Event
) -> None:
    ids = ["0000", "0001", "0002"]
    for id in ids:
        await sweep.run(id)
    await sweep.until(lambda: all(has_ended(sweep.tracking(id)) for id in ids))
    await sweep.until(lambda: "sweep/0001" not in recorders())
    assert "sweep/0000" in recorders()
    mlflow_may_answer.set()
    await sweep.until_records_are_closed()
    assert {(await sweep.trial(id)).mlflow_run_id for id in ids} == {"run"}


@simulated()
async def test_record_whose_end_cannot_be_written_is_left_for_later(
    sweep: SimulatedSweep, mlflow_may_answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sweep.run("0000")
    await sweep.until(lambda: has_ended(sweep.tracking("0000")))
    with monkeypatch.context() as full:
        full.setattr(RunRecorder, "conclude", lambda recorder, *_: no_space())
        await sweep.run("0001")
        await sweep.until(lambda: len(sweep.coordinator._recorder._closer._tasks) == 1)
    mlflow_may_answer.set()
    await sweep.until_records_are_closed()
    assert (await sweep.trial("0001")).mlflow_run_id == ""
    told = [event for event in await sweep.events("warning") if event.get("trial") == "0001"]
    assert "No space left" in told[0]["message"]
