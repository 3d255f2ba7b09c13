"""The benchmarks' commands as README and docs print them, each with `--quick`; and arms in processes of their own."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
BENCHMARKS = ROOT / "jobs" / "benchmarks"
PAGES = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "records" not in page.parts)]
PRINTED = re.compile(r"^uv run (?:--group bench )?python (jobs/benchmarks/.*)$", re.MULTILINE)
COMMANDS = sorted({command for page in PAGES for command in PRINTED.findall(page.read_text())})
REPRESENTATIVE = "jobs/benchmarks/loop_overhead.py"
EXPECTED = {
    *("loop_overhead", "startup", "techniques", "sweep_overhead", "tracking_cost", "scaling", "memory_prediction"),
    *("peers", "sweep_scale", "batch_size", "exhaustive_search"),
}


def run(*command: str, timeout: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )


def test_the_docs_print_a_command_for_each_benchmark() -> None:
    assert {Path(shlex.split(command)[0]).stem for command in COMMANDS} == EXPECTED


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[] if each == REPRESENTATIVE else pytest.mark.slow) for each in COMMANDS],
)
def test_a_printed_command_works(command: str) -> None:
    done = run(*shlex.split(command), "--quick", "--json", timeout=1100)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)
    assert all(part["raw"] and not part["failures"] for part in parts.values())
    if "loop_overhead" in command:
        ((_, differences),) = parts["loop"]["raw"]
        assert differences["bare again"] == differences["unfused"] == 0.0
    if "scaling" in command:
        ((windows, differences),) = parts["raw"]["raw"]
        assert set(differences.values()) == {0.0}
        assert all(clock > 0 for each in windows.values() for clock, _ in each)
        assert {name: len(each) for name, each in parts["efficiency"]["raw"]["step_seconds"].items()}["weak 1"] == 1
    if "peers" in command:
        arms = parts["peers"]["raw"]
        assert {each["killed"]["lost"] for (each,) in arms.values()} == {0}
        assert [arms["paceline"][0]["killed"][each] for each in ("duplicated", "missing")] == [0, 0]
    if "techniques" in command:
        facts = parts["resnet14"]["raw"]["facts"]
        assert facts["full checkpointing"]["peak_bytes"] < facts["fp32"]["peak_bytes"]


def test_a_process_that_fails_or_hangs_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    harness = importlib.import_module("harness")
    start, end = harness.run_command([sys.executable, "-c", "open('made', 'w')"], tmp_path)
    assert start < end
    assert (tmp_path / "made").exists()
    lines = "import sys; [print(f'line {number}', file=sys.stderr) for number in range(100)]; sys.exit(3)"
    with pytest.raises(harness.ArmFailed) as failure:
        harness.run_command([sys.executable, "-c", lines], tmp_path)
    first, *_, last = str(failure.value).splitlines()
    assert (first, last) == ("exit code 3", "line 99")
    with pytest.raises(harness.ArmFailed, match=r"0\.2 s"):
        harness.run_command([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, limit_seconds=0.2)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A short work for the arms of the part `raw` of scaling.py."""
    from paceline.config import load_config

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    scaling, ddp = importlib.import_module("scaling"), importlib.import_module("scaling_ddp")
    changes = ["scaling.num_workers=2", "trainer.epochs=null", "trainer.max_steps=1", "model.width=4"]
    return ddp.Work(load_config(scaling.DEFAULT, changes), turns=2, warm_up=1, steps=2)


@pytest.mark.slow
def test_an_arm_is_stopped_while_another_has_its_turn(work: Any, tmp_path: Path) -> None:
    ddp = importlib.import_module("scaling_ddp")
    arm = ddp.RunningArm(ddp.FIRST, work, tmp_path / "arm")
    try:
        arm.await_gate()
        with arm.stopped():
            assert {process.status() for process in arm.tree()} == {psutil.STATUS_STOPPED}
        assert arm.take_turn().clock > 0
    finally:
        arm.end()
    assert arm.tree() == []


@pytest.mark.slow
def test_an_arm_that_fails_says_why_and_leaves_no_process(work: Any, tmp_path: Path) -> None:
    ddp = importlib.import_module("scaling_ddp")
    changes = {"model.in_channels": 3}  # the digits have one
    broken = ddp.Work(work.config.with_overrides(changes), work.turns, work.warm_up, work.steps)
    with pytest.raises(ddp.ArmFailed, match="channels"):
        ddp.launch(broken, [ddp.FIRST], tmp_path, seed=0)
    left = [each for each in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(each.cmdline())]
    assert left == []


def test_the_workers_need_nothing_of_the_folder_of_the_benchmark(tmp_path: Path) -> None:
    """A node of a cluster has Paceline, and what the driver has pickled."""
    code = (
        "import runpy, sys; from ray import cloudpickle\n"
        "sys.path.insert(0, sys.argv[1]); import scaling\n"
        "scaling.serve.__module__ = '__main__'\n"
        "open('serve', 'wb').write(cloudpickle.dumps(scaling.serve))"
    )
    subprocess.run([sys.executable, "-c", code, str(BENCHMARKS)], cwd=tmp_path, check=True, timeout=100)
    script = "import pickle; print(pickle.load(open('serve', 'rb')).__name__)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "serve\n", done.stderr
