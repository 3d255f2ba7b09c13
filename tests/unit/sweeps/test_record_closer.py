"""Records of trials that are closed in the background."""

import gc
import threading
import time
from pathlib import Path

import pytest

from paceline.sweeps.coordinator.record_closer import RecordCloser
from paceline.tracking import upload_threads
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder, has_ended
from paceline.tracking.upload_cursor import UploadReport
from support.cluster.coordinators import NOWHERE, no_space
from support.sweeps.simulation import SimulatedSweep, simulated
from support.sweeps.unsent_sweeps import pretend_mlflow

REPORT = UploadReport("http://page", "1", "run", 0, None)


@pytest.fixture
def mlflow_may_answer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds up all that is sent to MLflow; two records at a time may wait for it."""
    event = threading.Event()

    def answer() -> UploadReport:
        assert event.wait(60)
        return REPORT

    pretend_mlflow(monkeypatch, answer)
    monkeypatch.setattr(upload_threads, "MOST_FINISHING", 2)
    return event


def in_memory(sweep: SimulatedSweep, kind: type[RunRecorder] | type[MlflowUploader]) -> list[str]:
    """Ids of the trials of a sweep whose recorders, or uploaders, are in memory."""
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, kind)]
    return sorted(each._folder.parent.name for each in found if sweep.folder / "trials" in each._folder.parents)


@simulated()
async def test_records_that_wait_for_their_turn_have_no_recorder_and_no_uploader(
    sweep: SimulatedSweep, mlflow_may_answer: threading.Event
) -> None:
    ids = ["0000", "0001", "0002", "0003"]
    for id in ids:
        await sweep.run(id)
    await sweep.until(lambda: all(has_ended(sweep.tracking(id)) for id in ids))
    await sweep.until(lambda: set(in_memory(sweep, RunRecorder)) <= {"0003"})  # the last one is still at hand
    await sweep.until(lambda: set(in_memory(sweep, MlflowUploader)) - {"0003"} == {"0000", "0001"})
    assert await sweep.coordinator.records_left() == 4
    mlflow_may_answer.set()
    await sweep.until_records_are_closed()
    assert await sweep.coordinator.records_left() == 0
    assert {(await sweep.trial(id)).mlflow_run_id for id in ids} == {"run"}
    assert set(in_memory(sweep, MlflowUploader)) <= {"0003"}


@simulated()
async def test_record_whose_end_cannot_be_written_is_left_for_later(
    sweep: SimulatedSweep, mlflow_may_answer: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_may_answer.set()
    abandoned: list[Path] = []
    monkeypatch.setattr(upload_threads.UploadThreads, "abandon", lambda uploads, folder: abandoned.append(folder))
    with monkeypatch.context() as full:
        full.setattr(RunRecorder, "conclude", lambda recorder, *_: no_space())
        await sweep.run("0001")
        await sweep.until_records_are_closed()
    assert (await sweep.trial("0001")).mlflow_run_id == ""
    told = [event for event in await sweep.events("warning") if event.get("trial") == "0001"]
    assert "No space left" in told[0]["message"]
    assert abandoned == [sweep.tracking("0001")], "nothing may be at work on it"
    await sweep.close(seconds=60)
    assert sweep.history().trials["0001"].mlflow_run_id == "run"


@simulated()
async def test_end_waits_as_long_as_mlflow_takes_records(
    sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Semaphore(0)

    def answer() -> UploadReport:
        begun.acquire()
        time.sleep(0.1)
        return REPORT

    pretend_mlflow(monkeypatch, answer)
    monkeypatch.setattr(upload_threads, "MOST_FINISHING", 1)
    ids = [f"{number:04d}" for number in range(8)]
    closer = sweep.coordinator._recorder._closer = RecordCloser(NOWHERE, upload_threads.UploadThreads())
    for id in ids:
        await sweep.run(id)
    begun.release(len(ids) - 1)
    began = time.monotonic()
    await closer.finish(0.5)  # less than all of them take, and more than one
    assert 1.0 < time.monotonic() - began < 5.0
    assert [bool((await sweep.trial(id)).mlflow_run_id) for id in ids] == [True] * 7 + [False]
    begun.release(10)
