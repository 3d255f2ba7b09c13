"""`paceline doctor`: every part is looked at, and what is wrong has a hint."""

import subprocess
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import pytest
import torch

from paceline import doctor
from paceline.doctor import DoctorCheck, diagnose

GPU_LINE = "NVIDIA H100, 81559 MiB"


@pytest.fixture(autouse=True)
def _nothing_is_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray-tmp"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=""))


def named(checks: list[DoctorCheck], name: str) -> DoctorCheck:
    return next(check for check in checks if check.name == name)


def test_every_part_is_looked_at_and_nothing_is_left_behind(tmp_path: Path) -> None:
    checks = diagnose(uri=f"sqlite:///{tmp_path}/mlflow.db", storage=tmp_path / "runs")
    assert [check.name for check in checks] == [
        *("python", "paceline", "torch", "torchvision", "ray", "mlflow", "bytecode", "gpus", "cores", "memory"),
        *("ray cluster", "tracking", "storage", "disk"),
    ]
    assert all(check.detail for check in checks)
    assert all(check.hint for check in checks if check.ok is False)
    assert named(checks, "mlflow").detail.startswith("3.")
    assert named(checks, "tracking").ok is True
    assert list(tmp_path.iterdir()) == []


def test_packages_that_each_process_compiles_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    check = named(diagnose(), "bytecode")
    assert (check.ok, check.hint) == (None, "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert "uv sync --compile-bytecode" in named(diagnose(), "bytecode").hint
    compiled = Path(cache_from_source(str(find_spec("torch").origin)))  # type: ignore[union-attr]
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert named(diagnose(), "bytecode").ok is True


def test_a_package_that_is_too_old_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.FLOORS, "ray", (99, 0))
    monkeypatch.setitem(doctor.FLOORS, "no-such-package", (1, 0))
    checks = diagnose()
    assert (named(checks, "ray").ok, named(checks, "no-such-package").ok) == (False, False)
    assert "99.0" in named(checks, "ray").hint


@pytest.mark.parametrize("reason", ["storage", "tracking"])
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, reason: str) -> None:
    (tmp_path / "file").write_text("")
    uri = f"sqlite:///{tmp_path}/nowhere/mlflow.db"
    check = named(diagnose(uri=uri, storage=tmp_path / "file" / "runs"), reason)
    assert check.ok is False
    assert check.hint


def test_gpus_that_torch_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert named(diagnose(), "gpus").ok is None
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=GPU_LINE))
    check = named(diagnose(), "gpus")
    assert check.ok is False
    assert "H100" in check.detail
