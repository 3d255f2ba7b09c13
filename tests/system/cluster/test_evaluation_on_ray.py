"""`RunResult.evaluate` and `predict` on a real Ray, with two workers."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paceline import RunFailed, RunResult, load_config, train
from paceline.cluster.listener import SilentListener

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]

SAMPLES = 31
"""Of the validation set: uneven for two workers, and for micro-batches of 8."""
CONFIG = f"""
name: both
model: {{path: "own_code:net"}}
data: {{path: "own_code:data", args: {{validation: {SAMPLES}}}, global_batch_size: 16}}
metrics: [{{name: f1}}]
callbacks: [{{name: ema, decay: 0.9}}]
optimizer: {{name: schedule_free_adamw, lr: 0.05}}
trainer: {{epochs: 2}}
scaling: {{num_workers: 0}}
"""
TWO = {"scaling.num_workers": 2, "scaling.cpus_per_worker": 0.5}


def measured(run: RunResult) -> dict[str, float]:
    return {key: value for key, value in run.metrics.items() if key.startswith("val/")}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_two_workers_evaluate_as_one_process_does(home: Path) -> None:
    """That they do as two workers in training, to the bit, is in `engine/test_evaluation_of_checkpoints.py`."""
    (home / "both.yaml").write_text(CONFIG)
    run = train(load_config("both.yaml"), listener=SilentListener())
    assert run.evaluate(overrides=TWO, listener=SilentListener()) == pytest.approx(measured(run), rel=1e-6)


def test_two_workers_predict_as_one_process_does(home: Path) -> None:
    (home / "both.yaml").write_text(CONFIG)
    run = train(load_config("both.yaml"), listener=SilentListener())
    before = contents(run.folder)
    assert run.predict(output=home / "two.parquet", overrides=TWO, listener=SilentListener()) == {}
    table = pd.read_parquet(home / "two.parquet")
    alone: Any = run.predict(listener=SilentListener())
    assert table["index"].tolist() == list(range(SAMPLES))
    assert table["targets"].tolist() == [index % 3 for index in range(SAMPLES)]
    assert table["predictions"].tolist() == alone["predictions"].tolist()
    accuracy = (alone["predictions"] == alone["targets"]).double().mean().item()
    assert accuracy == pytest.approx(run.metrics["val/accuracy"], abs=1e-12)

    assert contents(run.folder) == before
    assert [name for name in os.listdir(run.folder.parent) if name != run.run_id] == [".lock"]


BROKEN = """
import os, signal
from own_code import Points

class Broken(Points):
    def __init__(self, act):
        super().__init__(30)
        self.act = act

    def __getitem__(self, index):
        if index == 29 and self.act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 29:
            raise ZeroDivisionError("the user's own mistake")
        return super().__getitem__(index)

def data(act):
    return Points(16), Broken(act)
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["raise", "kill"])
def test_a_failing_worker_is_reported_and_leaves_nothing(home: Path, act: str) -> None:
    (home / "both.yaml").write_text(CONFIG)
    run = train(load_config("both.yaml"), listener=SilentListener())
    (home / "holdout.py").write_text(BROKEN)
    with pytest.raises(RunFailed) as caught:
        run.predict(
            output=home / "out.safetensors",
            overrides={"data.path": "holdout:data", "data.args": {"act": act}, **TWO},
            listener=SilentListener(),
        )
    if act == "raise":
        assert "rank 1: ZeroDivisionError: the user's own mistake" in str(caught.value)
        assert "holdout.py" in caught.value.traceback_text
    assert not list(home.glob("*out.safetensors*"))
    assert [name for name in os.listdir(run.folder.parent) if name != run.run_id] == [".lock"]
