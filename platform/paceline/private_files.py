"""Files and folders of runs: for their owner alone, or also for a group, where the folder above is shared with it.

A folder is shared if it has the setgid bit and its group may write to it (`chmod g+rwxs`). Folders made in it are
shared in turn: the rule looks only at the folder above, and one command shares all that is made later.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
SHARED_FILE, SHARED_FOLDER = 0o660, 0o2770


def make_folder(path: Path) -> None:
    """Make a folder and those missing above it, unless it is there.

    Raises:
        OSError: it cannot be made, or something else has its name.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(PRIVATE_FOLDER)
        if is_shared(path.parent):
            path.chmod(SHARED_FOLDER)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is not a folder")


def is_shared(folder: Path) -> bool:
    """Return True if what is made in a folder is for its group as well."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)


def file_mode(folder: Path) -> int:
    """Return the mode of files in a folder."""
    return SHARED_FILE if is_shared(folder) else PRIVATE_FILE


def open_private(path: "str | Path", flags: int) -> int:
    """Open a file as `os.open` does, or as the `opener` of `open`; a new one gets the mode of files in its folder."""
    mode = file_mode(Path(path).parent)
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    if mode == SHARED_FILE:
        with suppress(PermissionError):  # somebody else's, who has set it
            os.fchmod(descriptor, mode)  # the umask has taken the group's rights away
    return descriptor


def open_lock(path: "str | Path", flags: int) -> int:
    """Open a lock file as `open_private` does, but none that a symbolic link stands for."""
    return open_private(path, flags | os.O_NOFOLLOW)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that no crash of the machine has to spare."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def restrict(folder: Path) -> None:
    """Give a folder that was copied, and all that is in it, the modes of newly made ones."""
    for path in (folder, *folder.rglob("*")):
        is_folder, shared = path.is_dir(), is_shared(path.parent)
        wanted = (SHARED_FOLDER if shared else PRIVATE_FOLDER) if is_folder else file_mode(path.parent)
        with suppress(PermissionError):
            path.chmod(wanted)
