"""`paceline doctor`: what it finds, and that it starts nothing."""

import socket
import subprocess
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import pytest

from paceline import doctor
from paceline.doctor import Check, diagnose


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray-tmp"))


def _named(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def _dead_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


def test_every_part_is_looked_at_and_what_is_wrong_has_a_cure(tmp_path: Path) -> None:
    checks = diagnose(uri=f"sqlite:///{tmp_path}/mlflow.db", storage=tmp_path / "runs")
    assert [check.name for check in checks] == [
        *("python", "paceline", "torch", "torchvision", "ray", "mlflow", "bytecode", "gpus", "cores", "memory"),
        *("ray cluster", "tracking", "storage", "disk"),
    ]
    assert all(check.detail for check in checks)
    assert all(check.cure for check in checks if check.ok is False)
    assert _named(checks, "mlflow").detail.startswith("3.")
    assert _named(checks, "tracking").ok is True
    assert list(tmp_path.iterdir()) == []


def test_packages_that_each_process_compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert _named(diagnose(), "bytecode") == Check(
        "bytecode", None, "packages are compiled when they are first imported"
    )
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert "uv sync --compile-bytecode" in _named(diagnose(), "bytecode").cure
    compiled = Path(cache_from_source(str(find_spec("torch").origin)))
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert _named(diagnose(), "bytecode").ok is True


def test_a_package_that_is_too_old_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.FLOORS, "ray", (99, 0))
    monkeypatch.setitem(doctor.FLOORS, "no-such-package", (1, 0))
    checks = diagnose()
    assert (_named(checks, "ray").ok, _named(checks, "no-such-package").ok) == (False, False)
    assert "99.0" in _named(checks, "ray").cure
    assert _named(checks, "no-such-package").detail == "not installed"


def test_a_store_that_does_not_answer_names_its_cure_and_no_secret() -> None:
    check = _named(diagnose(uri=f"http://me:canary-S3cr3t@127.0.0.1:{_dead_port()}"), "tracking")
    assert check.ok is False
    assert "start the server" in check.cure
    assert "canary" not in f"{check}"


def test_a_cluster_that_answers_and_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert _named(diagnose(address=f"127.0.0.1:{port}"), "ray cluster").ok is True
        monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{port}")
        assert "RAY_ADDRESS" in _named(diagnose(), "ray cluster").detail
    assert _named(diagnose(), "ray cluster").ok is False


def test_a_stale_address_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "ray-tmp" / "ray" / "ray_current_cluster"
    file.parent.mkdir(parents=True)
    file.write_text(f"127.0.0.1:{_dead_port()}")
    check = _named(diagnose(), "ray cluster")
    assert check.ok is None
    assert str(file) in check.cure


def test_storage_above_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _named(diagnose(storage=tmp_path / "file" / "runs"), "storage").ok is False


def test_gpus_that_torch_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = subprocess.CompletedProcess([], 0, stdout="NVIDIA H100, 81559 MiB\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    check = _named(diagnose(), "gpus")
    assert check.ok is False
    assert "H100" in check.detail
    monkeypatch.setattr(doctor, "_driver_gpus", list)
    assert _named(diagnose(), "gpus").ok is None
