"""Creates the embedded MLflow database. Runs as a program of its own: `python database.py /folder/mlflow.db`.

MLflow takes seconds of pure Python to create one, which would slow down training in the same process; is torn when it
is killed meanwhile; and crashes when several processes do it at once. So a fresh database is made in a folder beside,
and appears under its name when it is complete. Of several programs for one database, one works and the others wait.
"""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

NICENESS = 10
"""The database is made while Ray and the workers start; they go first."""


def start_creating(path: Path, quiet: bool = False) -> "subprocess.Popen[bytes] | None":
    """Start the program unless the database is there. It ends with 0 once it is.

    Args:
        quiet: nobody will read its errors.

    Raises:
        FileNotFoundError: there is no folder for it.
    """
    if path.exists():
        return None
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the MLflow database does not exist: {path.parent}")
    command = [sys.executable, "-P", __file__, str(path)]  # -P: this folder must not shadow top-level modules
    errors = subprocess.DEVNULL if quiet else subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"paceline-database-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def create(path: Path) -> None:
    """Create the database in this process, unless someone else is faster."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}-") as folder:
        fresh = Path(folder) / path.name
        MlflowClient(f"sqlite:///{fresh}").search_experiments(max_results=1)
        _put_in_place(fresh, path)


def _put_in_place(fresh: Path, path: Path) -> None:
    try:
        os.link(fresh, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            fresh.rename(path)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(1)  # unlike the signal's own way, this removes the temporary folder


def main() -> None:
    """Entry point of the program."""
    path = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, _stop)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_LOGGING_LEVEL"] = "ERROR"
    os.chdir(path.parent)  # MLflow's own default experiment keeps its artifacts relative to here
    os.nice(NICENESS)
    with _alone(path):
        if not path.exists():
            create(path)


if __name__ == "__main__":
    main()
