"""The working folder of a job on its way to the cluster: which files travel, how large they are, and their archive."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

from paceline._compat.ray import walk_working_dir
from paceline.cluster.user_code import STAYS_AT_HOME
from paceline.errors import EnvironmentFault

MOST_BYTES = 95 * 2**20
"""Ray's dashboard takes 100 MiB in one piece, with what an archive adds to each file."""
MOST_BYTES_OF_DRIVER = 2 * 2**30
"""What a driver that stays at home may send: Ray takes 500 MiB of it packed, but packs all before it looks."""
SHOWN_ENTRIES = 3
_ALWAYS_OUT = (*STAYS_AT_HOME, "venv", "__pycache__")
_IGNORE_GITIGNORE = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Archives know no earlier time. All files get it, so that equal files make equal archives, which are sent once."""


@dataclass(frozen=True)
class JobFolder:
    """What travels of a folder."""

    folder: Path
    files: Mapping[str, int]
    """Name within the folder, with `/`, to size in bytes."""

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(self.files.values())

    def has(self, place: Path) -> bool:
        """Whether a file of the folder travels."""
        return place.relative_to(self.folder).as_posix() in self.files

    def has_some_below(self, place: Path) -> bool:
        """Whether some file below this folder, or one in it, travels."""
        return any((self.folder / name).is_relative_to(place) for name in self.files)

    def write(self, archive: Path) -> None:
        """Write the files into a zip archive, as Ray unpacks it.

        Raises:
            OSError: a file cannot be read, or the archive not be written.
        """
        with ZipFile(archive, "w") as packed:
            for name in sorted(self.files):
                file = self.folder / name
                entry = ZipInfo(name, _EARLIEST)
                entry.external_attr = (file.stat().st_mode & 0xFFFF) << 16
                packed.writestr(entry, file.read_bytes())


def require_sendable(runtime_env: Mapping[str, Any]) -> None:
    """Refuse a working folder that is too large to be sent, before Ray packs it.

    Raises:
        EnvironmentFault: it is.
        OSError: something in it cannot be looked at.
    """
    if "working_dir" in runtime_env:
        look_through(Path(runtime_env["working_dir"]), runtime_env.get("excludes", ()), MOST_BYTES_OF_DRIVER)


def look_through(folder: Path, excludes: Sequence[str] = (), most_bytes: int | None = None) -> JobFolder:
    """Find what travels: all but what `.gitignore` and `.rayignore` name, `excludes`, and what no job needs.

    Args:
        folder: absolute.
        excludes: patterns in the words of `.gitignore`.
        most_bytes: what it may come to; by default what Ray's dashboard takes.

    Raises:
        EnvironmentFault: it is more.
        OSError: something cannot be looked at.
    """
    files: dict[str, int] = {}
    total, most = 0, MOST_BYTES if most_bytes is None else most_bytes

    def take(path: Path) -> None:
        nonlocal total
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = size = path.stat().st_size
            total += size
            if total > most:
                raise _too_large(folder, files, most)

    use_gitignore = os.environ.get(_IGNORE_GITIGNORE) != "1"
    walk_working_dir(folder, [*_ALWAYS_OUT, *excludes], take, use_gitignore=use_gitignore, logger=_quiet())
    return JobFolder(folder, files)


def _too_large(folder: Path, files: Mapping[str, int], most_bytes: int) -> EnvironmentFault:
    entries: dict[str, int] = {}
    for name, size in files.items():
        top = name.partition("/")[0]
        entries[top] = entries.get(top, 0) + size
    largest = sorted(entries, key=lambda name: -entries[name])[:SHOWN_ENTRIES]
    shown = ", ".join(f"{name} ({size_text(entries[name])})" for name in largest)
    return EnvironmentFault(
        f"the working folder {folder} has more than {size_text(most_bytes)} to send, among it {shown}: name what the "
        "job does not need in .rayignore or .gitignore, or go to the folder of the project",
        "folder-too-large",
        folder=str(folder),
        limit_bytes=most_bytes,
        largest=largest,
    )


def size_text(size_bytes: int) -> str:
    """A size as people read it."""
    if size_bytes < 2**10:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 2**10:,.0f} KiB" if size_bytes < 2**20 else f"{size_bytes / 2**20:,.1f} MiB"


def _quiet() -> logging.Logger:
    """For Ray, which would log each folder with a `.gitignore`, and errors that are reported here."""
    logger = logging.getLogger("paceline.job_folder")
    logger.setLevel(logging.CRITICAL + 1)
    return logger
