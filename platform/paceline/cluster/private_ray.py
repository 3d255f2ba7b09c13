"""Folders of private Rays: one for each, in the system's temporary folder, for this user alone.

Ray opens the folders of its sessions, with its sockets and logs, to everybody on the machine, and never removes them.
"""

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.private_files import PRIVATE_FILE, make_folder

if TYPE_CHECKING:
    import psutil

PREFIX = "paceline-"
DEFAULT_ROOT = Path("/tmp")
LONGEST_SOCKET = 103
"""Maximum number of characters of a socket's path that every system allows."""
REMOVAL_SECONDS = 5.0
"""Seconds for which the removal of a folder is repeated while files appear in it."""
_RAY = "r"
"""Subfolder for Ray, which opens it to everybody; the folder above keeps others out."""
_SOCKET = f"{_RAY}/session_2000-01-01_00-00-00_000000_0000000/sockets/plasma_store"
"""The longest path that Ray makes in the folder."""

_keeps_logs = False


@contextmanager
def private_ray_folder() -> Iterator[Path]:
    """Make a folder for a private Ray that starts and ends in the body; remove those of dead private Rays.

    The folder of a body that fails, or has called `keep_logs`, is left until another private Ray starts.
    """
    global _keeps_logs
    _keeps_logs = False
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    dying = remove_dead_folders(root)
    folder, lock = _new_folder(root)
    try:
        try:
            yield folder / _RAY
        finally:
            _end_processes(folder)
        if not _keeps_logs:
            _remove(folder)
        for each in dying:  # a node that outlived its killed driver has ended by now
            with suppress(OSError):
                _remove_if_dead(each)
    finally:
        os.close(lock)


def _end_processes(folder: Path) -> None:
    """End processes of a private Ray that outlive it: after a death of its GCS, its agents stay for a minute."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            if _is_of(process, folder):
                process.kill()


def _is_of(process: "psutil.Process", folder: Path) -> bool:
    """Return True if a process belongs to the private Ray of a folder, and not to a user who reads its logs."""
    arguments: list[str] = process.info["cmdline"] or []
    if any("/ray/" in each for each in arguments):
        return any(str(folder) in each for each in arguments)
    # agents and workers have a title in place of their arguments, and their logs in the folder
    has_title = bool(arguments) and arguments[0].startswith("ray::")
    return has_title and any(str(folder) in file.path for file in process.open_files())


def keep_logs() -> None:
    """Leave the folder of this process's private Ray, whose logs may say why something went wrong in it."""
    global _keeps_logs
    _keeps_logs = True


def remove_dead_folders(root: Path) -> list[Path]:
    """Remove this user's folders of private Rays whose driver and node have both ended.

    Returns:
        Folders of which only the driver has ended so far, or that could not be removed.
    """
    dying = []
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another command removes it as well, or it is another user's
            if not _remove_if_dead(folder):
                dying.append(folder)
    return dying


@contextmanager
def private_token() -> Iterator[None]:
    """Keep the token of this user's Rays private, also one that a Ray started in the body writes. Ray lets everybody on
    the machine read it, and whoever has it can run code as this user."""
    with suppress(OSError, RuntimeError):  # a home that cannot be written to has no token, either
        make_folder(Path.home() / ".ray")
    _protect_token()
    yield
    _protect_token()


def _protect_token() -> None:
    with suppress(OSError, RuntimeError):
        (Path.home() / ".ray" / "auth_token").chmod(PRIVATE_FILE)


def _new_folder(root: Path) -> tuple[Path, int]:
    """Make a folder, and lock it for as long as the descriptor is open. On a file system without locks, no command can
    know that the driver of a folder is dead, and all folders stay."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))  # a name that nobody can guess and take first
        with suppress(FileNotFoundError):  # another command removes it before it is locked
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            if _is_locked(lock) and folder.exists():
                return folder, lock
            os.close(lock)


def _is_locked(descriptor: int) -> bool:
    """Lock a folder; False if another command has done so."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _root() -> Path:
    """Return the folder that Ray itself would take, unless the paths of its sockets would be too long there."""
    root = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or DEFAULT_ROOT)
    longest = root / f"{PREFIX}00000000" / _SOCKET
    return root if len(os.fsencode(longest)) <= LONGEST_SOCKET else DEFAULT_ROOT


def _remove_if_dead(folder: Path) -> bool:
    """Remove the folder of a dead driver, and end what is left of its Ray; False where its node still answers, or the
    folder could not be removed.

    Raises:
        OSError: the driver is alive, or the folder is gone.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            return True
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its driver holds the lock as long as it lives
        if any(map(_is_answered, folder.glob("*/session_*/sockets/raylet*"))):
            return False
        _end_processes(folder)
        _remove(folder)
        return not folder.exists()
    finally:
        os.close(opened)


def _remove(folder: Path) -> None:
    """Remove a folder, in which processes of Ray that are about to end may still make files."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            return
        if folder.exists():
            time.sleep(0.05)


def _is_answered(address: Path) -> bool:
    """Return True if a process listens at a socket: Ray's node may outlive its driver by some seconds."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(str(address)) == 0
