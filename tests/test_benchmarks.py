"""The benchmark of the techniques: its smallest setting from end to end, its formula, and what it records.

And the benchmark of sweeps: how it reads and compares what was measured, without Ray.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "jobs" / "benchmarks"
SMALLEST = [
    *("--ladders", "resnet14", "--arms", "fp32", "full checkpointing"),
    *("--rounds", "1", "--turn", "0.01", "--check", "3"),
    *("--set", "data.shape=[3,16,16]", "data.num_samples=16", "data.global_batch_size=8"),
]


@pytest.fixture
def techniques(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("techniques")


def test_it_compares_arms_on_a_cpu_without_ray_and_mlflow(tmp_path: Path) -> None:
    for name in ("ray", "mlflow"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    results = tmp_path / "results.json"
    command = [sys.executable, str(BENCHMARKS / "techniques.py"), *SMALLEST, "--json", str(results)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    plain, checkpointed = json.loads(results.read_text())["resnet14"]["arms"]
    assert len(plain["turns"]) == len(checkpointed["turns"]) == 1
    assert checkpointed["losses"] == pytest.approx(plain["losses"], abs=1e-6)
    assert checkpointed["peak_bytes"] < plain["peak_bytes"]
    assert "full checkpointing" in done.stdout


class TwoSteps:
    """Stands in for training: 8 MiB come and go in the first step, and 2 stay until the second, which takes 3 and 1."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def state_bytes(self) -> int:
        return 1000

    def steps_with_loss(self, count: int) -> list[float]:
        assert count == 1
        if not self.kept:
            mebibytes(8)
            self.kept = [mebibytes(2)]
            return [2.0]
        both = [*self.kept, mebibytes(3)]
        self.kept.clear()
        del both
        mebibytes(1)
        return [1.0]


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * 2**20, dtype=torch.uint8)


@pytest.mark.usefixtures("techniques")
def test_the_peak_is_that_of_the_second_step() -> None:
    one_arm = importlib.import_module("one_arm")
    assert one_arm.first_two_steps(TwoSteps()) == ([2.0, 1.0], 1000 + 5 * 2**20)


def test_mfu_is_that_of_the_paper(techniques: Any) -> None:
    # GPT-2 small: 6 * 124 M + 12 * 12 * 768 * 1024 = 744 M + 113.246208 M operations a token
    assert techniques.mfu(
        tokens_per_second=500_000,
        parameters=124_000_000,
        num_layers=12,
        width=768,
        context=1024,
        peak_tflops=989.4,
    ) == pytest.approx(0.5e6 * 857.246208e6 / 989.4e12)


def test_position_embeddings_do_not_count(techniques: Any) -> None:
    model = {"num_layers": 2, "embedding_dim": 8, "context_length": 16}
    rows = [{"parameters": 1000 + 16 * 8, "samples_per_second": 10.0}, {"failure": "no memory"}]
    techniques.add_mfu(rows, model, 1e-6)
    assert rows[0]["mfu"] == pytest.approx(10 * 16 * (6 * 1000 + 12 * 2 * 8 * 16) / 1e6)
    assert "mfu" not in rows[1]


@pytest.mark.parametrize(
    ("expected", "losses", "weights", "text", "is_as_expected"),
    [
        ("bit", [2.0, 1.0], "a", "equal to the bit", True),
        ("bit", [2.0, 1.0], "b", "NOT EQUAL: 0.0e+00", False),
        ("rounding", [2.0, 1.001], "b", "equal but for rounding, 1.0e-03", True),
        ("rounding", [2.0, 1.5], "b", "NOT EQUAL: 5.0e-01", False),
        ("rounding", [2.0, float("nan")], "b", "NOT FINITE: [2.0, nan]", False),
        ("design", [2.0, 1.5], "b", "differ by design, 5.0e-01", True),
    ],
)
def test_the_comparison_with_the_first_arm(
    techniques: Any, expected: str, losses: list[float], weights: str, text: str, is_as_expected: bool
) -> None:
    first = {"losses": [2.0, 1.0], "weights_sha256": "a"}
    mine = {"losses": losses, "weights_sha256": weights}
    assert techniques.compare(expected, mine, first) == (text, is_as_expected)


def result(date: str = "2026-01-02T03:04:05+00:00") -> dict[str, Any]:
    ratio = {"ratio": 1.0, "low": 0.9, "high": 1.1}
    row = {
        "arm": "fp32",
        "samples_per_second": 4000.0,
        "speed": ratio,
        "peak_bytes": 2**30,
        "losses_compared": "equal to the bit",
        "turns": [{"seconds": 1.0, "steps": 10}],
    }
    arms = [{**row, "mfu": 0.512}, {"arm": "fp64", "failure": "OutOfMemoryError"}]
    return {"surroundings": {"date": date, "gpu": "NVIDIA H100 80GB HBM3"}, "set": {}, "arms": arms}


def test_a_record_has_tables_numbers_and_the_log_of_all_its_ladders(techniques: Any, tmp_path: Path) -> None:
    techniques.write_record(tmp_path, {"gpt": result()}, ["started"])
    folder = techniques.write_record(tmp_path, {"vit": result()}, ["ended"])
    assert folder == tmp_path / "2026-01-02_nvidia-h100-80gb-hbm3"
    assert list(json.loads((folder / "results.json").read_text())) == ["gpt", "vit"]
    assert (folder / "log").read_text() == "started\nended\n"
    page = (folder / "README.md").read_text()
    assert page.count("51.2%") == 2
    assert page.count("fp64                FAILED: OutOfMemoryError") == 2


@pytest.fixture
def sweep_overhead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("sweep_overhead")


@pytest.fixture
def raw() -> dict[str, Any]:
    """What all arms measured, in seconds."""
    return {
        "no-op": {"function_entered": 30.0, "end_of_fit": 40.0},
        "stock": {"first_step": 50.0, "ends": [60.0, 98.0, 140.0], "process": 150.0},
        "paceline": {"first_step": 45.0, "ends": [46.0, 48.0, 49.0, 49.25, 49.75, 50.5], "process": 55.0},
        "two slots": {"trials": [[50.0, 70.0], [51.0, 72.0], [70.5, 91.0], [73.0, 94.0]]},
    }


def test_the_sweeps_benchmark_tells_its_options_without_ray_and_mlflow(tmp_path: Path) -> None:
    for name in ("ray", "mlflow", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    command = [sys.executable, str(BENCHMARKS / "sweep_overhead.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for option in ("--arms", "--trials", "--stock-trials", "--seconds", "--json"):
        assert option in done.stdout


def journal(folder: Path, trial: str, start: float, steps: int, seconds: float) -> None:
    """A trial whose steps take so long, the first one twice that, evaluated half a second after the last."""
    ends = [start + seconds * (step + 1) for step in range(1, steps + 1)]
    values = [
        *(("train/loss", 1.0, step, end) for step, end in enumerate(ends, 1)),
        ("step_seconds", 2 * seconds, 1, ends[0]),
        ("val/loss", 1.0, steps, ends[-1] + 0.5),
    ]
    entries: list[dict[str, Any]] = [{"kind": "artifact", "path": "config.yaml"}]
    for key, value, step, end in values:
        entries.append({"kind": "point", "key": key, "value": value, "step": step, "timestamp_ms": int(end * 1000)})
    path = folder / "runs" / "overhead" / "20260102-030405-abcdef" / "trials" / trial / "tracking" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def test_the_times_of_trials_are_those_of_their_metrics(sweep_overhead: Any, tmp_path: Path) -> None:
    journal(tmp_path, "0000", start=2000.0, steps=10, seconds=1.0)
    journal(tmp_path, "0001", start=1000.0, steps=10, seconds=0.25)
    assert sweep_overhead.read_trials(tmp_path) == [
        pytest.approx((1000.0, 1000.5, 1003.25)),
        pytest.approx((2000.0, 2002.0, 2011.5)),
    ]


def test_trials_that_left_no_times_fail_the_arm(sweep_overhead: Any) -> None:
    span = sweep_overhead.Span(1000.0, 1060.0)
    times = sweep_overhead.since(span, 1045.0, [1050.0, 1048.0], 2)
    assert times == {"first_step": 45.0, "ends": [48.0, 50.0], "process": 60.0}
    with pytest.raises(sweep_overhead.ArmFailed, match="2 of 3 trials"):
        sweep_overhead.since(span, 1045.0, [1050.0, 1048.0], 3)


def test_what_the_sweeps_benchmark_makes_of_its_measurements(sweep_overhead: Any, raw: dict[str, Any]) -> None:
    assert sweep_overhead.figures(raw, 32) == pytest.approx(
        {
            "no-op: function entered": 30.0,
            "no-op: cold start": 40.0,
            "stock: cold start": 50.0,
            "stock: trial, mean": 40.0,
            "stock: total": 150.0 + 29 * 40.0,
            "paceline: cold start": 45.0,
            "paceline: trial, median": 0.5,  # 0.25, 0.5 and 0.75: the first two trials are left out
            "paceline: trial, mean": 0.5,
            "paceline: total": 55.0,
            "two slots: total": 44.0,
            "two slots: ideal": 4 / 2 * 20.0,
        }
    )


def test_the_bars_of_the_sweeps_benchmark(sweep_overhead: Any, raw: dict[str, Any]) -> None:
    aims = sweep_overhead.bars(sweep_overhead.figures(raw, 32), 32)
    assert [aim.value for aim in aims] == pytest.approx([45 / 40, 0.5, 55 / 1310, 1.1])
    assert [aim.most for aim in aims] == pytest.approx([1.5, 0.5, 1 / 12, 1.1])
    assert [aim.verdict for aim in aims] == ["met"] * 4
    raw["paceline"] = {"first_step": 61.0, "ends": [61.0, 62.0, 63.0, 63.1, 63.2, 65.0], "process": 120.0}
    raw["two slots"]["trials"][3][1] = 94.1
    aims = sweep_overhead.bars(sweep_overhead.figures(raw, 32), 32)
    # of the seconds a trial, the median would do and the mean does not
    assert [aim.verdict for aim in aims] == ["not met"] * 4


def test_a_sweeps_arm_that_failed_leaves_its_bars_open(sweep_overhead: Any, raw: dict[str, Any]) -> None:
    del raw["no-op"], raw["stock"]
    values = sweep_overhead.figures(raw, 32)
    aims = sweep_overhead.bars(values, 32)
    assert [aim.verdict for aim in aims] == ["not measured", "met", "not measured", "met"]
    text = sweep_overhead.table(values, aims, {"stock": "exit code 3\nno room"}, {"cores": 2})
    assert "stock FAILED: exit code 3\nno room" in text
    assert text.count("not measured") == 2
    assert text.endswith("cores 2")


def test_a_failed_process_is_told_with_the_end_of_its_stderr(sweep_overhead: Any, tmp_path: Path) -> None:
    lines = "import sys; [print(f'line {number}', file=sys.stderr) for number in range(100)]; sys.exit(3)"
    with pytest.raises(sweep_overhead.ArmFailed) as failure:
        sweep_overhead.run_process([sys.executable, "-c", lines], tmp_path)
    told = str(failure.value).splitlines()
    assert told[0] == "exit code 3"
    assert told[-1] == "line 99"
    assert len(told) < 30


def test_a_process_that_takes_too_long_is_ended(sweep_overhead: Any, tmp_path: Path) -> None:
    script = "import time; time.sleep(60)"
    with pytest.raises(sweep_overhead.ArmFailed, match=r"took more than 0\.2 s"):
        sweep_overhead.run_process([sys.executable, "-c", script], tmp_path, limit_seconds=0.2)


@pytest.fixture
def tracking_cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which it sets for itself otherwise
    return importlib.import_module("tracking_cost")


def test_the_benchmark_of_tracking_tells_its_options_without_ray_and_mlflow(tmp_path: Path) -> None:
    for name in ("ray", "mlflow", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    command = [sys.executable, str(BENCHMARKS / "tracking_cost.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for option in ("--parts", "--rounds", "--epochs", "--calls", "--json"):
        assert option in done.stdout


COSTS = {
    "calls": {"paceline": 0.01, "paceline, durable": 1.0, "log_metric, SQLite": 0.5, "log_metric, server": 0.1},
    "share": {"log_every_n_steps 1": {"by clock": 0.005, "by cpu time": 0.004, "microseconds a call": 9.0}},
    "wall": {
        "off": [1.0, 2.0, 4.0],
        "off again": [1.01, 1.98, 4.04],
        "on": [1.005, 2.0, 4.01],
        "on, cold": [2.0, 3.0, 5.0],
    },
}


def test_the_bars_of_the_benchmark_of_tracking(tracking_cost: Any) -> None:
    assert [told for *_, told in tracking_cost.aims(COSTS)] == ["not met", "met", "met"]
    dear = {
        "calls": {**COSTS["calls"], "log_metric, server": 0.2},
        "share": {"log_every_n_steps 1": {"by clock": 0.011, "by cpu time": 0.004, "microseconds a call": 9.0}},
        "wall": {**COSTS["wall"], "on": [1.1, 2.2, 4.4]},
    }
    assert [told for *_, told in tracking_cost.aims(dear)] == ["met", "not met", "not met"]
    assert tracking_cost.aims({}) == []
    text = tracking_cost.table(COSTS, {"cores": 2})
    assert "1.0025 [" in text or "1.0000 [" in text
    assert text.endswith("cores 2")


def test_only_the_calls_of_the_training_thread_are_timed(tracking_cost: Any) -> None:
    timed = tracking_cost.Timed(tracking_cost.Dropping())
    timed.metrics(1, {"a": 1.0})
    timed.event("plan")
    assert timed.recorded(1.0)
    assert timed.calls == 2
    assert 0 < timed.clock < 1
