"""Secrets are found nowhere after runs and sweeps on Ray either, whose own logs are looked at too."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.tracking.canaries import ADDRESS, KEY, Workplace, found_in, made_in

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]

SPACE = {"model.args.source": [f"s3://me:{ADDRESS}@host/whole", f"s3://me:{ADDRESS}@host/broken"]}


@pytest.fixture
def rays_files() -> Iterator[Path]:
    """Where Ray writes; its sockets allow no long path."""
    with tempfile.TemporaryDirectory(prefix="canary", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def workplace(tmp_path: Path, prepared_database: Path, rays_files: Path) -> Workplace:
    made = made_in(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(prepared_database.read_bytes())
    made.environment = {**made.environment, "RAY_TMPDIR": str(rays_files)}
    return made


def given(command: str, *more: str) -> tuple[str, ...]:
    on_ray = "scaling.num_workers=1", "scaling.cpus_per_worker=0.5"
    return (command, "tiny.yaml", f"model.args.api_key={KEY}", *on_ray, *more)


def test_runs_leave_no_secret(workplace: Workplace, rays_files: Path) -> None:
    assert workplace.run(*given("train")) == 0, workplace.said.decode()
    assert workplace.run_script(*given("train", "name=failing")[2:], MISTAKE="1") == 1
    assert b"no login with" in workplace.said
    assert list(rays_files.rglob("*.log"))
    assert found_in(workplace, rays_files) == []


def test_a_sweep_leaves_no_secret(workplace: Workplace, rays_files: Path) -> None:
    """One of two settings of an axis that is itself a secret raises with it."""
    assert workplace.run(*given("sweep", f"sweep.space={json.dumps(SPACE)}", "--dry-run")) == 0
    assert workplace.run(*given("sweep", f"sweep.space={json.dumps(SPACE)}")) == 4, workplace.said.decode()
    assert workplace.run("report", "tiny") == 0, workplace.said.decode()
    assert b"no login with" in workplace.said
    assert list(workplace.folder.rglob("report.html"))
    assert list(rays_files.rglob("*.log"))
    assert found_in(workplace, rays_files) == []
