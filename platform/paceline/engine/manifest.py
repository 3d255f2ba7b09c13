"""A checkpoint's manifest: which files it has, their sizes and SHA-256. Whatever has a valid one is whole."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.durable import sync_folder, write_synced

MANIFEST = "MANIFEST.json"
FORMAT = 1
STATE = "state.json"
"""File of a checkpoint with everything that is not a tensor."""
NEEDED = ("model.safetensors", STATE)
"""Files that every checkpoint has."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    size_bytes: int
    sha256: str


class BrokenCheckpoint(Exception):
    """A checkpoint folder that cannot be trusted; the message says which file and why."""

    def __init__(self, message: str, code: str = "", **fields: object) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields


def hash_file(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = _digest(file)
    return FileEntry(path.stat().st_size, digest)


def _digest(file: Any) -> str:
    digest = sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path, step: int) -> None:
    """Describe every file of `folder`, and make all of it durable. An older manifest is replaced."""
    files = {path.name: asdict(hash_file(path)) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    text = json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1)
    write_synced(folder / MANIFEST, text.encode())
    sync_folder(folder)


def verify(folder: Path) -> int:
    """The step of a checkpoint whose every file is as its manifest says.

    Raises:
        BrokenCheckpoint: it is not, or there is no readable manifest.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        entries = {name: FileEntry(**entry) for name, entry in manifest["files"].items()}
        step = int(manifest["step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BrokenCheckpoint(f"{MANIFEST} is not readable: {error}", "unreadable-file", file=MANIFEST) from None
    if missing := [name for name in NEEDED if name not in entries]:
        raise BrokenCheckpoint(
            f"{MANIFEST} does not name {' and '.join(missing)}", "incomplete-manifest", missing=missing
        )
    for name, entry in entries.items():
        _verify_file(folder / name, entry)
    return step


def _verify_file(path: Path, entry: FileEntry) -> None:
    try:
        found = hash_file(path)
    except OSError as error:
        raise BrokenCheckpoint(
            f"{path.name} is not readable: {error.strerror}", "unreadable-file", file=path.name
        ) from None
    if found.size_bytes != entry.size_bytes:
        message = f"{path.name} has {found.size_bytes} bytes instead of {entry.size_bytes}"
        raise BrokenCheckpoint(message, "wrong-size", file=path.name)
    if found.sha256 != entry.sha256:
        raise BrokenCheckpoint(f"{path.name} does not have the SHA-256 of the manifest", "wrong-hash", file=path.name)


def set_aside(path: Path) -> None:
    """Rename a broken checkpoint, so that nothing takes it for a good one and nothing is lost."""
    aside = path.with_name(f"{path.name}.broken")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """The `step-<n>` folders of a run, newest first."""
    found = []
    for path in folder.glob("step-*"):
        number = path.name.removeprefix("step-")
        if number.isdigit() and path.is_dir():
            found.append((int(number), path))
    yield from sorted(found, reverse=True)
