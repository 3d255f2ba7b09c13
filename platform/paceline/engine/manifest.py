"""A checkpoint's manifest: which files it has, their sizes and SHA-256. Whatever has a valid one is whole.

A manifest can be written for any files. So their formats are checked, too: nothing but safetensors and JSON is read.
"""

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
    """The step of a checkpoint whose every file is as its manifest says, and in the format of its name.

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
    if strange := [name for name in entries if Path(name).name != name]:
        raise BrokenCheckpoint(
            f"{MANIFEST} names {strange[0]!r}, which is not a file name", "unreadable-file", file=MANIFEST
        )
    if unnamed := sorted({path.name for path in folder.glob("*.safetensors")} - entries.keys()):
        raise BrokenCheckpoint(f"{MANIFEST} does not name {unnamed[0]}", "incomplete-manifest", missing=unnamed)
    for name, entry in entries.items():
        _verify_file(folder / name, entry)
        if name.endswith(".safetensors"):
            _verify_tensors(folder / name)
        elif name.endswith(".json"):
            _verify_values(folder / name, step)
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


def _verify_tensors(path: Path) -> None:
    from safetensors import SafetensorError, safe_open  # it takes numpy along

    try:
        with safe_open(path, framework="numpy"):  # reads the header
            pass
    except (SafetensorError, OSError) as error:
        raise BrokenCheckpoint(
            f"{path.name} is not a safetensors file: {error}", "wrong-format", file=path.name
        ) from None


def _verify_values(path: Path, step: int) -> None:
    try:
        values = json.loads(path.read_bytes())
        found = values["position"]["step"] if path.name == STATE else step
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{path.name} is not what it should be: {type(error).__name__}: {error}"
        raise BrokenCheckpoint(message, "wrong-format", file=path.name) from None
    if found != step:
        raise BrokenCheckpoint(f"{path.name} is that of step {found!r}, not {step}", "wrong-format", file=path.name)


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
