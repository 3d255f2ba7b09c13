"""The benchmark of the techniques: its smallest setting from end to end, its formula, and what it records."""

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
