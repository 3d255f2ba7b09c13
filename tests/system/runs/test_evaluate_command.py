"""`paceline evaluate` and `paceline predict` on the command line: exit codes, and what they print."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest

from paceline import RunResult, load_run
from support.cli.command import run_in_process
from support.golden import Golden
from support.runs.trained_runs import CNN, swept, trained


@pytest.fixture
def home(database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(database.parent)
    return database.parent


def plain(text: str, folder: Path, run: RunResult) -> str:
    return text.replace(str(folder), "<home>").replace(run.run_id, "<id>")


def test_the_metrics_are_printed(images: Path, golden: Golden) -> None:
    run = load_run(images / "runs" / "images")
    ended = run_in_process(images, "evaluate", "images")
    assert ended.code == 0
    golden("\n".join(line.split("  ")[0] for line in plain(ended.out, images, run).splitlines()))
    found = run_in_process(images, "evaluate", f"images/{run.run_id}", "--json", "--checkpoint", "step-6").json
    values = {key: value for key, value in run.metrics.items() if key.startswith("val/")}
    assert found == {"run": f"run images/{run.run_id}", "checkpoint": run.checkpoint, "step": 6, "metrics": values}


def test_a_name_of_a_run_and_a_sweep_is_evaluated_with_a_warning(images: Path) -> None:
    sweep = images / "runs" / "images" / "20200101-000000-aaaaaa"
    (sweep / "trials").mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    try:
        ended = run_in_process(images, "evaluate", "images", "--json")
    finally:
        shutil.rmtree(sweep)
    assert ended.json["run"].startswith("run images/")
    assert "images/20200101-000000-aaaaaa" in ended.err
    assert "[runs-and-sweeps]" in ended.err


def test_a_metric_that_is_no_number_is_null(images: Path) -> None:
    (images / "mine.py").write_text(
        "class Nothing:\n"
        "    def update(self, predictions, targets): ...\n"
        "    def compute(self): return float('nan')\n"
        "    def reset(self): ...\n"
    )
    metric = "metrics=[{name: nothing, path: 'mine:Nothing'}]"
    found = run_in_process(
        images, "evaluate", "images", metric, "--json", "--set", "validation", "--set", "training"
    ).json["metrics"]
    assert found["val/nothing"] is found["train/nothing"] is None
    assert math.isfinite(found["train/loss"])


def test_a_file_is_written(images: Path, golden: Golden) -> None:
    run = load_run(images / "runs" / "images")
    ended = run_in_process(images, "predict", "images", "--output", "out.parquet")
    assert (ended.code, len(pd.read_parquet(images / "out.parquet"))) == (0, 16)
    golden(plain(ended.out, images, run))
    found = run_in_process(
        images, "predict", "images", "data.num_validation_samples=8", "--output", "new/out.safetensors", "--json"
    ).json
    assert found == {
        "run": f"run images/{run.run_id}",
        "checkpoint": run.checkpoint,
        "step": 6,
        "set": "validation",
        "output": str(images / "new" / "out.safetensors"),
        "samples": 8,
        "shapes": {"predictions": [8], "targets": [8]},
    }


def test_a_signal_ends_it_and_leaves_nothing(images: Path) -> None:
    (images / "signals.py").write_text(
        "import os, signal\n"
        "class Interrupted(list):\n"
        "    def __getitem__(self, index):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "def data(): return [], Interrupted([0, 1])\n"
    )
    (images / "kept.parquet").write_text("as before")
    ended = run_in_process(images, "predict", "images", "data.path=signals:data", "--output", "kept.parquet")
    assert (ended.code, ended.out) == (130, "")
    assert [path.name for path in images.glob("*kept*")] == ["kept.parquet"]
    assert (images / "kept.parquet").read_text() == "as before"
    assert not list(images.glob("runs/images/.evaluation*"))


def test_of_a_sweep_the_best_trial_is_evaluated(home: Path) -> None:
    sweep = swept(home, "sweep", {"0000": 1e-6, "0001": 0.05}, **{**CNN, "trainer": {"epochs": 1}})
    found = run_in_process(home, "evaluate", "sweep", "--json").json
    named = run_in_process(home, "evaluate", f"sweep/{sweep.run_id}/0001", "--json").json
    assert found == named
    assert found["run"] == f"trial sweep/{sweep.run_id}/0001"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("evaluate", "nothing"), 3),
        (("evaluate", "images", "--checkpoint", "step-1"), 3),
        (("evaluate", "images", "--set", "test"), 2),
        (("evaluate", "images", "model.width=5"), 2),
        (("evaluate", "images", "trainer.epochs"), 2),
        (("evaluate",), 2),
        (("predict", "images"), 2),
        (("predict", "images", "--output", "out.csv"), 2),
        (("predict", "images", "--output", "/proc/out.parquet"), 3),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else str(each),
)
def test_what_is_wrong_ends_with_its_code(images: Path, arguments: tuple[str, ...], code: int, golden: Golden) -> None:
    run = load_run(images / "runs" / "images")
    ended = run_in_process(images, *arguments)
    assert (ended.code, ended.out) == (code, "")
    lines = ended.err.splitlines()
    last = max(number for number, line in enumerate(lines) if "error: " in line)
    golden(plain("\n".join(lines[last:]), images, run))


def test_code_of_a_config_from_elsewhere_is_not_called_unasked(home: Path) -> None:
    run = trained(home, "images", **CNN)
    shutil.move(home / "runs", home / "moved")
    inner = home / "inner"
    inner.mkdir()
    (inner / "own.py").write_text("def data():\n    raise RuntimeError('was called')\n")
    file = home / "moved" / "images" / run.run_id / "run.json"
    content = json.loads(file.read_bytes())
    content["config"]["data"] = {"path": "own:data", "args": {}, "micro_batch_size": 8}
    file.write_text(json.dumps(content))
    arguments = ("evaluate", "images", "--storage", str(home / "moved"))
    refused = run_in_process(inner, *arguments)
    assert refused.code == 2
    assert "[trust]" in refused.err
    called = run_in_process(inner, *arguments, "--trust")
    assert called.code == 1
    assert "was called" in called.err
