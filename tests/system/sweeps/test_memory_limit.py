"""Predictions of memory before a sweep, made in a process of their own."""

from pathlib import Path

import pytest

from support.sweeps.launches import RecordingListener
from support.sweeps.memory_limit import fit, sweep_with_limit

pytestmark = pytest.mark.usefixtures("separate_processes_are_forked")


def test_model_that_cannot_fit_is_left_out() -> None:
    found = fit(sweep_with_limit(axis=("model.hidden", [[8], [16384]]), seeds=2))
    assert [point.id for point in found.made.planned_trials] == ["0000", "0001"]
    assert [(trial.id, trial.state) for trial in found.made.skipped] == [
        ("0002", "predicted_oom"),
        ("0003", "predicted_oom"),
    ]
    # 2,146 weights and biases of 4 bytes, with gradients and momentum as much again
    assert 2 * 4 * 2146 <= found.predicted_bytes["0000"] <= 10**6


def test_model_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_net.py").write_text("import time\n\ndef build(seconds):\n    time.sleep(seconds)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("paceline.memory.plan.PATIENCE_SECONDS", 2.0)
    hanging = {"path": "hanging_net:build", "args": {"seconds": 3600}}
    listener = RecordingListener()
    config = sweep_with_limit(axis=("model.args.seconds", [3600, 3601]), model=hanging)
    assert len(fit(config, listener=listener).made.planned_trials) == 2
    assert listener.warnings == ["memory-not-predicted"]
    assert "hanging_net.py:4, in build" in listener.events[0][1]["message"]
