"""Creates the embedded MLflow database. Runs as a program of its own: `python database.py /folder/mlflow.db STARTER`.

MLflow takes seconds of pure Python to create a database, which would slow down training in the same process. If it is
killed meanwhile, it leaves an incomplete database. If several processes create one at once, it crashes. So a new
database is created in a temporary folder, and gets its name when it is complete. Of several programs for one database,
one works and the others wait. None of them outlives the process that started it, whose id is STARTER.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

NICENESS = 10
"""Niceness of the program: Ray and the workers, which start at the same time, have priority."""
POLL_SECONDS = 0.5
"""Interval at which the program checks whether the process that started it is gone."""
WAIT_SECONDS = 0.1
END_SECONDS = 5.0
"""Time in which the program has to tidy up before it is killed."""
FRESH = "fresh.db"
"""The database's name while it is being made."""


def start_creating(path: Path, quiet: bool = False) -> "subprocess.Popen[bytes] | None":
    """Start the program unless the database exists. It exits with 0 once the database is complete.

    Args:
        quiet: True if nobody will read its errors.

    Raises:
        FileNotFoundError: the folder for the database does not exist.
    """
    if path.exists():
        return None
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the MLflow database does not exist: {path.parent}")
    # -P: this folder must not shadow top-level modules
    command = [sys.executable, "-P", __file__, str(path), str(os.getpid())]
    errors = subprocess.DEVNULL if quiet else subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    atexit.register(end, process)
    return process


def finish_creating(process: "subprocess.Popen[bytes]", abandoned: threading.Event) -> None:
    """Wait for a program that `start_creating` started, and end it when nobody needs the database any more.

    Raises:
        RuntimeError: it has failed.
    """
    while process.poll() is None and not abandoned.wait(WAIT_SECONDS):
        pass
    end(process)
    _, errors = process.communicate()
    if process.returncode:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2] or f"exit {process.returncode}"
        raise RuntimeError(f"creating the MLflow database failed: {reason}")


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program that `start_creating` started, if it still runs. Its incomplete files are removed."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def sqlite_uri(path: Path) -> str:
    """MLflow's address of a database file, whatever the names of the folders on the way to it hold."""
    # SQLAlchemy takes `?` for the end of the path, and unquotes the rest
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def main() -> None:
    """Entry point of the program."""
    path, starter = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGTERM, _stop)
    for number in (signal.SIGINT, signal.SIGHUP):  # these of the terminal are for the starter, which may continue
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_LOGGING_LEVEL"] = "ERROR"
    os.chdir(path.parent)  # MLflow's own default experiment keeps its artifacts relative to here
    os.nice(NICENESS)
    sys.path.append(str(Path(__file__).parents[2]))  # the package may be importable in the starter alone
    with _alone(path):
        if not path.exists():
            create(path, path.parent / f".mlflow-{_token(path)}")


def _token(path: Path) -> str:
    """Return the lock's name, which this machine and this user alone have for the database."""
    place = f"{socket.gethostname()}|{os.getuid()}|{path.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let only one process at a time execute the body for this database. On a file system without locks, several may,
    and the first one to finish wins."""
    place = path.with_name(f".{path.name}.lock")  # beside it: whoever can take it there may write the database, too
    lock = _locked(place)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(lock)


def _locked(place: Path) -> int:
    """Open and lock a file; one that its last owner has removed meanwhile does not count.

    Raises:
        OSError: it cannot be opened, or is a symbolic link.
    """
    from paceline.private_files import open_lock

    while True:
        lock = open_lock(place, os.O_RDWR | os.O_CREAT)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), place.lstat()):
                return lock
        os.close(lock)


def create(path: Path, workplace: Path) -> None:
    """Create the database in this process, unless another process is faster.

    Args:
        path: path of the database, in the working folder.
        workplace: a folder beside it that nobody else uses. Files left there by a killed process are removed.
    """
    from mlflow import MlflowClient

    from paceline.private_files import file_mode, make_folder

    shutil.rmtree(workplace, ignore_errors=True)
    make_folder(workplace)
    try:
        # relative: with `%` or `?` in the address, MLflow would make a folder of that name
        MlflowClient(f"sqlite:///{workplace.name}/{FRESH}").search_experiments(max_results=1)
        (workplace / FRESH).chmod(file_mode(path.parent))  # what SQLite puts beside it gets the same mode
        _put_in_place(workplace / FRESH, path)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _put_in_place(fresh: Path, path: Path) -> None:
    try:
        os.link(fresh, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            fresh.rename(path)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)  # unlike the signal's own way, this removes what was being made


def _end_with(starter: int) -> None:
    """End this program when the process that started it has ended, however that came about."""
    while os.getppid() == starter:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
