"""Points that are predicted not to fit are left out before the first trial, and only those."""

from typing import Any

import pytest

from paceline.config import ExperimentConfig
from paceline.errors import EnvironmentFault, RunFailed
from paceline.memory.plan import cannot_fit
from paceline.sweeps.trial import Trial
from support.sweeps.launches import RecordingListener
from support.sweeps.memory_limit import GIB, LIMIT, fit, sweep_with_limit

OUT = Trial("0001", {"data.micro_batch_size": 16}, state="predicted_oom", reason="too large")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is predicted for each value of the axis, in place of predictions, which take seconds."""
    found: dict[str, Any] = {"asked": []}

    def ask(config: ExperimentConfig, points: list[dict[str, Any]], *rest: Any, **options: Any) -> dict[str, Any]:
        found["asked"].append(points)
        if "error" in found:
            raise found["error"]
        memory = [
            None if (size := found[str(*point.values())]) is None else {"memory": {"weights": size}} for point in points
        ]
        return {"points": memory, "device_memory_bytes": 3 * GIB}

    monkeypatch.setattr("paceline.memory.predicting.ask", ask)
    return found


def batches(**options: Any) -> ExperimentConfig:
    return sweep_with_limit(axis=("data.micro_batch_size", [8, 16]), **options)


def test_prediction_within_its_error_removes_nothing(sizes: dict[str, Any]) -> None:
    sizes |= {"8": round(1.07 * LIMIT * GIB), "16": round(1.09 * LIMIT * GIB)}
    found = fit(batches())
    assert [point.params for point in found.made.planned_trials] == [{"data.micro_batch_size": 8}]
    assert found.predicted_bytes == {"0000": sizes["8"]}
    assert (cannot_fit(109, 100), cannot_fit(107, 100)) == (True, False)


def test_point_that_cannot_be_predicted_stays(sizes: dict[str, Any], golden: Any) -> None:
    sizes |= {"8": None, "16": 10}
    found = fit(batches())
    assert len(found.made.planned_trials) == 2
    assert found.predicted_bytes == {"0001": 10}
    listener = RecordingListener()
    sizes["error"] = RunFailed("the model's own mistake")
    assert len(fit(batches(), listener=listener).made.planned_trials) == 2
    assert listener.warnings == ["memory-not-predicted"]
    golden(listener.events[0][1]["message"])


def test_largest_micro_batch_is_left_to_training(sizes: dict[str, Any]) -> None:
    sizes |= {"8": 10}
    assert len(fit(sweep_with_limit(axis=("data.micro_batch_size", ["max", 8]))).made.planned_trials) == 2
    assert sizes["asked"] == [[{"data.micro_batch_size": 8}]]


def test_estimates_and_sweeps_without_a_limit_ask_for_nothing(sizes: dict[str, Any]) -> None:
    estimated = sweep_with_limit(axis=("parallel.strategy", ["fsdp", "pipeline"])).with_overrides(
        {"scaling.num_workers": 2, "model.hidden": [8, 8], "trainer.gradient_accumulation_steps": 2}
    )
    for config in (estimated, batches(limit=None)):
        assert len(fit(config).made.planned_trials) == 2
    assert not sizes["asked"]


def test_sweep_without_a_point_that_fits_is_refused(sizes: dict[str, Any], golden: Any) -> None:
    sizes |= {"8": 5 * GIB, "16": 4 * GIB}
    with pytest.raises(EnvironmentFault) as caught:
        fit(batches())
    assert caught.value.code == "no-trial-fits"
    assert caught.value.fields == {"least_bytes": 4 * GIB, "limit_bytes": round(LIMIT * GIB)}
    golden(str(caught.value))


def test_points_that_were_left_out_stay_out_of_a_resumed_sweep(sizes: dict[str, Any]) -> None:
    sizes |= {"8": 10}
    found = fit(batches(), ended={"0001": OUT})
    assert [point.id for point in found.made.planned_trials] == ["0000"]
    assert found.made.skipped == [OUT]
    assert sizes["asked"] == [[{"data.micro_batch_size": 8}]]
