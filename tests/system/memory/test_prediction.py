"""The prediction against what training takes, as `jobs/benchmarks/memory_prediction.py` compares them."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import validate
from paceline.memory.measuring import measure_peak
from paceline.memory.predicting import ask

BENCHMARKS = Path(__file__).resolve().parents[3] / "jobs" / "benchmarks"
IN_CI = "gpt 16 x 2 32-true full"
TWO_WORKERS = {"num_workers": 2, "use_gpu": False}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("memory_prediction")


@pytest.fixture
def trees(benchmark: Any) -> dict[str, Any]:
    """The 24 configs."""
    found: dict[str, Any] = benchmark.cases(False)
    assert len(found) == 24
    assert len(benchmark.cases(True)) == 30
    return found


def predicted(tree: dict[str, Any], **changes: Any) -> int:
    answer = ask(validate({**tree, **changes}), [{}], on_cuda=False, facts=False)
    return sum(answer["points"][0]["memory"].values())


def error(tree: dict[str, Any], **changes: Any) -> float:
    return predicted(tree, **changes) / measure_peak(validate({**tree, **changes})) - 1


@pytest.mark.usefixtures("separate_processes_are_forked")
def test_one_of_the_configs_is_within_the_bar(benchmark: Any, trees: dict[str, Any]) -> None:
    (chosen,) = [tree for name, tree in trees.items() if name.startswith(IN_CI)]
    assert abs(error(chosen)) <= benchmark.MEAN_ERROR


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_the_configs_are_within_the_bars(benchmark: Any, trees: dict[str, Any]) -> None:
    mean, worst = benchmark.errors([{"error": error(tree)} for tree in trees.values()])
    assert mean <= benchmark.MEAN_ERROR
    assert worst <= benchmark.WORST_ERROR


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "as_views"),
    [
        ("resnet18 16 x 1 32-true none sgd", True),
        ("resnet18 16 x 1 32-true none sgd", False),
        ("resnet18 16 x 2 32-true full adamw", True),
    ],
)
def test_one_of_two_ranks_is_within_the_bars(benchmark: Any, trees: dict[str, Any], name: str, as_views: bool) -> None:
    tree = trees[name]
    parallel = {"gradient_as_bucket_view": as_views, "bucket_cap_mb": 5}
    assert abs(error(tree, scaling=TWO_WORKERS, parallel=parallel)) <= benchmark.WORST_ERROR
