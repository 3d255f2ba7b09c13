"""Points that are predicted not to fit are left out before the first trial, and only those."""

from pathlib import Path
from typing import Any

import pytest

from paceline.config import ExperimentConfig
from paceline.config.loading import validate
from paceline.errors import EnvironmentFault, RunFailed
from paceline.study.memory.plan import cannot_fit
from paceline.sweeps.planning.memory import Fitting, fitting
from paceline.sweeps.planning.points import make_points
from paceline.sweeps.trials import Trial
from sweeps.launches import Told

GIB = 2**30
LIMIT = 0.01


def config_of(
    limit: float | None = LIMIT,
    axis: tuple[str, list[Any]] = ("model.hidden", [[8], [16384]]),
    model: dict[str, Any] | None = None,
    **sweep: Any,
) -> ExperimentConfig:
    data = {"name": "synthetic", "shape": [256], "num_samples": 64, "global_batch_size": 16}
    return validate(
        {
            "name": "sweep",
            "model": model or {"name": "mlp", "in_features": 256, "hidden": [8]},
            "data": {**data, "num_classes": 10},
            "scaling": {"num_workers": 1, "use_gpu": False},
            "sweep": {"space": dict([axis]), "device_memory_gib": limit, **sweep},
        }
    )


def fit(config: ExperimentConfig, ended: dict[str, Trial] | None = None, told: Any = None) -> Fitting:
    return fitting(config, make_points(config), ended or {}, told or Told())


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is predicted for each value of the axis; in place of predictions, which take seconds."""
    found: dict[str, Any] = {"asked": []}

    def ask(config: ExperimentConfig, points: list[dict[str, Any]], *rest: Any, **options: Any) -> dict[str, Any]:
        found["asked"].append(points)
        if "error" in found:
            raise found["error"]
        memory = [
            None if (size := found[str(*point.values())]) is None else {"memory": {"weights": size}} for point in points
        ]
        return {"points": memory, "device_memory_bytes": 3 * GIB}

    monkeypatch.setattr("paceline.study.memory.predicting.ask", ask)
    return found


def test_a_model_that_cannot_fit_is_left_out_for_real() -> None:
    found = fit(config_of(seeds=2))
    assert [point.id for point in found.made.points] == ["0000", "0001"]
    assert [(trial.id, trial.state) for trial in found.made.skipped] == [
        ("0002", "predicted_oom"),
        ("0003", "predicted_oom"),
    ]
    assert "its device has 0.01 GiB" in found.made.skipped[0].reason
    # 2,146 weights and biases of 4 bytes, with gradients and momentum as much again
    assert 2 * 4 * 2146 <= found.predicted_bytes["0000"] <= 10**6


def test_a_prediction_within_its_error_removes_nothing(sizes: dict[str, Any]) -> None:
    sizes |= {"8": round(1.07 * LIMIT * GIB), "16": round(1.09 * LIMIT * GIB), "32": 0}
    found = fit(config_of(axis=("data.micro_batch_size", [8, 16])))
    assert [point.overrides for point in found.made.points] == [{"data.micro_batch_size": 8}]
    assert found.predicted_bytes == {"0000": sizes["8"]}
    assert cannot_fit(109, 100)
    assert not cannot_fit(107, 100)


def test_what_cannot_be_predicted_stays(sizes: dict[str, Any]) -> None:
    sizes |= {"8": None, "16": 10}
    found = fit(config_of(axis=("data.micro_batch_size", [8, 16])))
    assert len(found.made.points) == 2
    assert found.predicted_bytes == {"0001": 10}
    told = Told()
    sizes["error"] = RunFailed("the model's own mistake")
    assert len(fit(config_of(axis=("data.micro_batch_size", [8, 16])), told=told).made.points) == 2
    assert told.events == [
        ("warning", {"message": "the memory of the points could not be predicted: the model's own mistake"})
    ]


def test_a_model_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_net.py").write_text("import time\n\ndef build(seconds):\n    time.sleep(seconds)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("paceline.study.memory.plan.PATIENCE_SECONDS", 5.0)
    hanging, told = {"path": "hanging_net:build", "args": {"seconds": 3600}}, Told()
    found = fit(config_of(axis=("model.args.seconds", [3600, 3601]), model=hanging), told=told)
    assert len(found.made.points) == 2
    assert "took more than 5 s, and was given up: it was at" in told.events[0][1]["message"]
    assert "hanging_net.py:4, in build" in told.events[0][1]["message"]


def test_training_finds_out_by_itself_what_fits_at_most(sizes: dict[str, Any]) -> None:
    sizes |= {"8": 10}
    assert len(fit(config_of(axis=("data.micro_batch_size", ["max", 8]))).made.points) == 2
    assert sizes["asked"] == [[{"data.micro_batch_size": 8}]]


def test_what_is_but_an_estimate_removes_nothing(sizes: dict[str, Any]) -> None:
    sizes |= {"8": 10 * GIB}
    config = config_of(axis=("parallel.strategy", ["fsdp", "pipeline"])).with_overrides(
        {"scaling.num_workers": 2, "model.hidden": [8, 8], "trainer.gradient_accumulation_steps": 2}
    )
    assert len(fit(config).made.points) == 2
    assert not sizes["asked"]


def test_without_a_limit_nothing_is_asked(sizes: dict[str, Any]) -> None:
    assert len(fit(config_of(limit=None)).made.points) == 2
    assert not sizes["asked"]


def test_nothing_left_is_an_error_that_tells_the_smallest(sizes: dict[str, Any]) -> None:
    sizes |= {"8": 5 * GIB, "16": 4 * GIB}
    with pytest.raises(EnvironmentFault, match=r"the smallest is predicted to take 4 GiB.*has 0.01 GiB"):
        fit(config_of(axis=("data.micro_batch_size", [8, 16])))


def test_what_was_left_out_stays_so_when_a_sweep_goes_on(sizes: dict[str, Any]) -> None:
    sizes |= {"8": 10}
    out = Trial("0001", {"data.micro_batch_size": 16}, state="predicted_oom", reason="too large")
    found = fit(config_of(axis=("data.micro_batch_size", [8, 16])), ended={"0001": out})
    assert [point.id for point in found.made.points] == ["0000"]
    assert found.made.skipped == [out]
    assert sizes["asked"] == [[{"data.micro_batch_size": 8}]]
