"""The benchmarks as modules: they import each other from their folder."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "jobs" / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a benchmark by its name; what it does to the environment ends with the test."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("OMP_NUM_THREADS", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"):
        monkeypatch.setenv(name, "1")
    return importlib.import_module


@pytest.fixture
def harness(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("harness")
