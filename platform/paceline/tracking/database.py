"""Creates the embedded MLflow database. Runs as a program of its own: `python database.py /folder/mlflow.db`.

MLflow takes seconds of pure Python to create one, which would slow down training in the same process; is torn when it
is killed meanwhile; and crashes when several processes do it at once. So a fresh database is made in a folder beside,
and appears under its name when it is complete. Whoever is first wins, the others use that one.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType


def start_creating(path: Path) -> "subprocess.Popen[bytes] | None":
    """Start the program unless the database is there. It ends with 0 once it is.

    Raises:
        FileNotFoundError: there is no folder for it.
    """
    if path.exists():
        return None
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the MLflow database does not exist: {path.parent}")
    command = [sys.executable, "-P", __file__, str(path)]  # -P: this folder must not shadow top-level modules
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


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
    create(path)


if __name__ == "__main__":
    main()
