"""Folders of runs: the storage that holds them, the file of a run, and its removal.

<storage>/<name>/<run_id>/    run.json, checkpoints/, tracking/
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paceline.durable import write_durably
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.places import place_of
from paceline.private_files import make_folder, restrict
from paceline.storage.address import StoreAddress, is_address, parse
from paceline.storage.in_progress import LOCK

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

SUMMARY = "summary"
"""Entry of a run's file: the result in one line, or the reason of a failure."""
RUN_FOLDER_REMOVED = "run-folder-removed"


def storage_of(config: "ExperimentConfig") -> Path | StoreAddress:
    """Return the place that holds the runs: a folder, or an address in an object store, which is not contacted here.

    Raises:
        ConfigError: `storage.path` is not an address that can be used.
        EnvironmentFault: the system refuses the folder's name.
    """
    path = config.storage.path or "runs"
    return parse(path) if is_address(path) else place_of(path).resolve()


def storage_folder(config: "ExperimentConfig") -> Path:
    """Return the folder that holds the runs, for commands that cannot use an object store.

    Raises:
        ConfigError: `storage.path` is an address rather than a folder.
        EnvironmentFault: the system refuses the name.
    """
    storage = storage_of(config)
    if isinstance(storage, Path):
        return storage
    hint = "name a folder, on a cluster one that all nodes share"
    if "path" not in config.storage.model_fields_set:
        hint = f"{hint}: PACELINE_STORAGE of the environment has an address, and storage.path=runs takes its place"
    raise ConfigError(
        [Problem("storage", "tune-ups and scale studies cannot be kept in an object store", "storage.path", hint=hint)]
    )


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an OSError of a body that writes into the folder into a fault of the environment: it is read-only, full or
    gone.

    Raises:
        EnvironmentFault: the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        message = f"the folder {folder} is not writable: {error.strerror or error}"
        raise EnvironmentFault(message, "folder-not-writable", folder=str(folder)) from error


@dataclass(frozen=True)
class RunFolder:
    """`<storage>/<name>/<run_id>`: the config, the status, the journal and the checkpoints of one run."""

    FILE: ClassVar[str] = "run.json"
    """Holds the config and the status, and marks a folder as a run's."""

    path: Path

    @property
    def run_id(self) -> str:
        """Identifier of the run, sortable by the time of its start."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of `step-<n>` folders."""
        return self.path / "checkpoints"

    @property
    def tracking(self) -> Path:
        """Folder of the recorder's journal."""
        return self.path / "tracking"

    def read(self) -> dict[str, Any]:
        """Return the content of its file, with `status` and `config`; empty if there is no file.

        Raises:
            EnvironmentFault: the file is damaged.
        """
        file = self.path / self.FILE
        try:
            return dict(json.loads(file.read_bytes()))
        except OSError:
            return {}
        except (ValueError, TypeError):
            hint = f"put it back from a copy, or move {self.path} away to start again"
            raise EnvironmentFault(f"{file} is damaged: {hint}", "run-file-damaged", file=str(file)) from None

    @property
    def is_removed(self) -> bool:
        """True once it, or its file, was removed."""
        return not (self.path / self.FILE).exists()

    def add_warnings(self, warnings: Iterable[str]) -> tuple[str, ...]:
        """Keep warnings in its file beside those of earlier launches; returns all of them, each once."""
        known = self.read().get("warnings", [])
        found = list(dict.fromkeys([*known, *warnings]))
        with suppress(OSError):  # the disk is full, as the listener knows
            if found != known:
                self.write(warnings=found)
        return tuple(found)

    def write(self, **changes: Any) -> None:
        """Change entries of its file, all or nothing. Only the owner may read it: a config may hold secrets.

        Raises:
            FileNotFoundError: the file was removed. What would be left of it is not a run.
            OSError: it cannot be written.
        """
        content = {**self.read(), **changes}
        if "config" not in content:
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(self.path / self.FILE))
        write_durably(self.path / self.FILE, json.dumps(content, indent=1).encode())


Folder = TypeVar("Folder", bound=RunFolder)


def place_checkpoint(checkpoint: Path, folder: Path) -> Path:
    """Link or copy a checkpoint into another run's folder of checkpoints."""
    make_folder(folder)
    shutil.copytree(checkpoint, folder / checkpoint.name, copy_function=link_or_copy)
    restrict(folder / checkpoint.name)
    return folder / checkpoint.name


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name; copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove_unused(home: Path) -> None:
    """Remove the folder of a name if it holds nothing but the lock. Its lock must be held."""
    with suppress(OSError):  # another command has just locked it again, or the error that led here is about the folder
        if [path.name for path in home.iterdir()] == [LOCK]:
            (home / LOCK).unlink()
            home.rmdir()


def folder_removed(word: str, folder: Path, kept: str = "", checkpoint: str = "") -> EnvironmentFault:
    """Return the error of a command whose folder was removed.

    Args:
        word: its kind in messages: run, sweep, tune-up or scale study.
        kept: sentence about what is left, without its full stop.
        checkpoint: the place of a state that was saved since.
    """
    rest = f". {kept}" if kept else ""
    message = f"the folder of the {word} was removed while it was in progress: {folder}{rest}"
    return EnvironmentFault(message, RUN_FOLDER_REMOVED, folder=str(folder), checkpoint=checkpoint)


def run_removed(folder: Path, checkpoint: str, is_stored: bool) -> EnvironmentFault:
    """Return the error of `train`, with what is left of the run.

    Args:
        is_stored: the folder was the working copy of a run in an object store.
    """
    if is_stored:
        return folder_removed("run", folder, "The same command resumes it from its store", checkpoint)
    kept = f"Its record is in {folder / 'tracking'} again. The same command starts a new run"
    if checkpoint:
        kept += f"; with --init-from {checkpoint} it starts from the last weights"
    return folder_removed("run", folder, kept, checkpoint)
