"""A sweep's coordinator: an exception of any kind in a trial's record costs that record alone, and is reported."""

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.coordinator import sweep_recorder
from paceline.sweeps.coordinator.running_trial import TrialCoordinator
from paceline.tracking import metrics
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import UploadReport
from support.sweeps.simulation import ONE, SimulatedSweep, play, simulated
from support.sweeps.unsent_sweeps import pretend_mlflow

ERRORS = [
    KeyError("status"),
    AttributeError("'NoneType' object has no attribute 'info'"),
    RuntimeError("cannot schedule new futures"),
    AssertionError(),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    pickle.UnpicklingError("no"),
    asyncio.CancelledError(),
    SystemExit(1),
]


def raising_for(part: str, error: BaseException, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a recorder that raises for the records whose folder has this in its path."""

    def maybe(recorder: Any, *given: Any, **named: Any) -> Any:
        if part in str(recorder._folder):
            raise error
        return method(recorder, *given, **named)

    return maybe


@pytest.fixture(autouse=True)
def _mlflow_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mlflow(monkeypatch, lambda: UploadReport("http://page", "1", "run", 0, None))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@simulated(slots=2)
async def test_error_while_a_record_is_closed(
    sweep: SimulatedSweep, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunRecorder, "hand_over", raising_for("0001", error, RunRecorder.hand_over))
    ids = ["0000", "0001", "0002"]
    assert await sweep.run_all(*ids) == ["finished"] * 3
    await sweep.until_records_are_closed()
    assert [(await sweep.trial(id)).mlflow_run_id for id in ids] == ["run", "", "run"]
    told = [event for event in await sweep.events("warning") if event["code"] == "unsent"]
    assert {event["trial"] for event in told} == {"0001"}
    assert type(error).__name__ in told[0]["message"]
    await sweep.close(seconds=60)  # and neither then: its end is still not written down
    assert [sweep.history().trials[id].mlflow_run_id for id in ids] == ["run", "", "run"]
    assert set((await sweep.states()).values()) == {"finished"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@simulated(slots=2)
async def test_error_while_a_record_is_sent(
    sweep: SimulatedSweep, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, finish = ["0000", "0001", "0002"], MlflowUploader.finish_patiently
    with monkeypatch.context() as broken:
        broken.setattr(MlflowUploader, "finish_patiently", raising_for("0001", error, finish))
        assert await sweep.run_all(*ids) == ["finished"] * 3
        await sweep.until_records_are_closed()
    assert [(await sweep.trial(id)).mlflow_run_id for id in ids] == ["run", "", "run"]
    told = [event for event in await sweep.events("warning") if event["code"] == "unsent"]
    assert [(event["trial"], type(error).__name__ in event["message"]) for event in told] == [("0001", True)]
    await sweep.close(seconds=60)
    assert {trial.mlflow_run_id for trial in sweep.history().trials.values()} == {"run"}, "at the end it is sent"


@pytest.mark.parametrize("error", ERRORS[:3], ids=lambda error: type(error).__name__)
@simulated(slots=2)
async def test_error_while_the_state_of_a_trial_is_recorded(
    sweep: SimulatedSweep, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising = raising_for("0001", error, TrialCoordinator.tag)
    tag = TrialCoordinator.tag
    monkeypatch.setattr(
        TrialCoordinator,
        "tag",
        lambda coordinator, tags: (raising if metrics.TRIAL_STATE in tags else tag)(coordinator, tags),
    )
    assert await sweep.run_all("0000", "0001", "0002") == ["finished"] * 3
    told: list[str] = []
    while not told:  # it is written in a thread of its own, for which the trial does not wait
        await asyncio.sleep(0.002)  # looking alone never lets the event loop take in what the thread has to say
        told = [event["message"] for event in await sweep.events("warning") if event["code"] == "not-written"]
    assert ["0001" in message and type(error).__name__ in message for message in told] == [True]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), *ERRORS[:3], SystemExit(1)])
def test_error_in_a_record_that_an_earlier_launch_has_left(
    new_sweep: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_sweep()

    async def runs() -> None:
        await first.run_all("0000", "0001")

    with monkeypatch.context() as context:
        context.setattr(RunRecorder, "hand_over", raising_for("/trials/", SystemExit(), RunRecorder.hand_over))
        play(first, runs)
    second = new_sweep()
    exists = Path.exists
    monkeypatch.setattr(
        Path, "exists", lambda path: raise_it(error) if "0000/tracking/record" in str(path) else exists(path)
    )

    async def later() -> None:
        await second.coordinator.prepare([ONE])
        await second.until(lambda: second.history().trials["0001"].mlflow_run_id)
        await second.close(seconds=60)

    play(second, later)
    assert second.history().trials["0000"].mlflow_run_id == ""
    told = [details for kind, details in second.coordinator._recorder.events.since()[0] if kind == "warning"]
    assert {(event["code"], event.get("trial")) for event in told} == {("unsent", "0000")}


@pytest.mark.parametrize("error", ERRORS[:3], ids=lambda error: type(error).__name__)
@simulated()
async def test_error_in_the_record_of_the_best_trial_at_the_end(
    sweep: SimulatedSweep, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_recorder, "kept_checkpoints", lambda *_: raise_it(error))
    await sweep.run("0000")
    assert (await sweep.close(seconds=60))["unsent"] == 0
    assert "not-written" in await sweep.warnings()


def raise_it(error: BaseException) -> Any:
    """Raise an exception, where only an expression may stand."""
    raise error
