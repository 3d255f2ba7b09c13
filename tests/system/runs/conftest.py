"""What tests of finished runs share: a storage and a database."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.tracking import run_recorder
from support.runs.trained_runs import CNN, trained
from support.tracking.fixtures import _environment

__all__ = ["_environment"]


@pytest.fixture(autouse=True, scope="module")
def _records_are_sent_from_this_process() -> Iterator[None]:
    """A process for each of the many short runs would import MLflow again, which takes longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_recorder, "can_upload_in_own_process", lambda folder: False)
        yield


@pytest.fixture
def database(prepared_database: Path, tmp_path: Path) -> Path:
    """A fresh database of the test's own."""
    return Path(shutil.copy(prepared_database, tmp_path / "mlflow.db"))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """The folder for runs."""
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def images(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the finished run `images` of a small CNN, which the tests of a file share."""
    folder = tmp_path_factory.mktemp("images")
    shutil.copy(prepared_database, folder / "mlflow.db")
    trained(folder, "images", **CNN)
    return folder


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of a size, such as `8k`."""
    folder = tmp_path / "disk"

    def mount(size: str) -> Path:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a tmpfs needs root")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", folder], check=True)
