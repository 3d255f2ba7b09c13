"""`paceline doctor`: whether the store and the cluster answer."""

import socket
from pathlib import Path

import pytest

from paceline.cluster.cluster_doctor import DoctorCheck
from paceline.doctor import diagnose


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray-tmp"))


def named(checks: list[DoctorCheck], name: str) -> DoctorCheck:
    return next(check for check in checks if check.name == name)


def dead_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


def test_a_store_that_does_not_answer_has_a_hint_and_shows_no_secret() -> None:
    check = named(diagnose(uri=f"http://me:canary-S3cr3t@127.0.0.1:{dead_port()}"), "tracking")
    assert check.ok is False
    assert check.hint
    assert "canary" not in f"{check}"


def test_a_cluster_that_answers_and_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert named(diagnose(address=f"127.0.0.1:{port}"), "ray cluster").ok is True
        monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{port}")
        assert "RAY_ADDRESS" in named(diagnose(), "ray cluster").detail
    assert named(diagnose(), "ray cluster").ok is False


def test_a_stale_address_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ray-tmp" / "ray" / "ray_current_cluster"
    file.parent.mkdir(parents=True)
    file.write_text(f"127.0.0.1:{dead_port()}")
    check = named(diagnose(), "ray cluster")
    assert check.ok is None
    assert str(file) in check.hint
