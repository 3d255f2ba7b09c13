"""Checkpoints: tensors in safetensors, the rest in JSON, never pickle.

A checkpoint is written to a temporary folder, made durable, and renamed; its manifest vouches for every byte. So a
`step-<n>` folder is either whole or, after damage, set aside with the reason when a run resumes.
"""

import json
import shutil
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save

from paceline.durable import sync_folder, write_synced
from paceline.engine.manifest import STATE, BrokenCheckpoint, numbered, set_aside, verify, write_manifest
from paceline.errors import EnvironmentFault
from paceline.private_files import make_folder

START_FROM_SCRATCH = "start from scratch with --new"
"""Hint of errors about a checkpoint that does not fit."""

Files = Mapping[str, bytes]
"""Further files of a checkpoint, by name."""


@dataclass(frozen=True)
class Snapshot:
    """A consistent copy of the training state, taken at a step boundary."""

    step: int
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    values: Mapping[str, Any]

    @property
    def temporary_name(self) -> str:
        """Name of the folder that the checkpoint is written to, until it is complete."""
        return f".step-{self.step}.writing"

    def write_tensors(self, folder: Path) -> None:
        """Make the folder, and write a file for each part of the state."""
        make_folder(folder)
        for name, tensors in self.tensors.items():
            if tensors or name == "model":
                write_synced(folder / f"{name}.safetensors", save(dict(tensors)))


def write_checkpoint(folder: Path, snapshot: Snapshot, before_commit: Callable[[], Files | None] = dict) -> Path:
    """Write `folder/step-<n>`. `before_commit` is called when all is written, just before the rename.

    The files that `before_commit` returns are written, too.

    Raises:
        OSError: the disk is full or not writable. Nothing is left behind.
    """
    final = folder / f"step-{snapshot.step}"
    temporary = folder / snapshot.temporary_name
    for left in folder.glob(".step-*writing"):  # by a process that was killed, at whichever step
        shutil.rmtree(left, ignore_errors=True)
    try:
        snapshot.write_tensors(temporary)
        write_synced(temporary / STATE, json.dumps(snapshot.values, indent=1).encode())
        write_manifest(temporary, snapshot.step)
        further = before_commit()
        if further:
            for name, data in further.items():
                write_synced(temporary / name, data)
            write_manifest(temporary, snapshot.step)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint that `verify` has found whole; tensors on the CPU."""
    values = json.loads((folder / STATE).read_bytes())
    tensors = {path.stem: load_file(path) for path in folder.glob("*.safetensors")}
    return Snapshot(values["position"]["step"], {"optimizer": {}, **tensors}, values)


def newest_valid(folder: Path, on_broken: Callable[[Path, str], None]) -> Path | None:
    """Return the newest valid checkpoint of a run; None if it has none.

    Newer checkpoints that are broken are set aside and reported to `on_broken`.
    """
    for _, path in numbered(folder):
        try:
            verify(path)
        except BrokenCheckpoint as error:
            set_aside(path)
            on_broken(path, str(error))
        else:
            return path
    return None


def prune(folder: Path, keep: int, protected: Collection[int] = ()) -> None:
    """Remove all but the newest `keep` checkpoints, and those of the protected steps."""
    for step, path in list(numbered(folder))[keep:]:
        if step not in protected:
            shutil.rmtree(path, ignore_errors=True)


class CheckpointStore(Protocol):
    """A store outside the run's folder that holds the run's checkpoints; the folder then has working copies.

    Its methods raise an `EnvironmentFault` when the store cannot be used.
    """

    def place_of(self, step: int) -> str:
        """Return the location of a checkpoint in the store, for messages."""

    def put(self, checkpoint: Path, is_recorded: Callable[[], bool], is_last: bool = False) -> None:
        """Copy a whole checkpoint into the store. It counts once `is_recorded` returns True, which may block.

        Args:
            is_last: training is over and nothing waits for the copy, so it is retried for longer.
        """

    def prune(self, keep: int, protected: Collection[int] = ()) -> None:
        """Remove all checkpoints from the store but the newest `keep` and those of the protected steps."""

    def newest(self, on_broken: Callable[[Path, str], None], is_recorded: Callable[[], bool]) -> Path | None:
        """Return the working copy of the newest whole checkpoint; copy it here first if it is missing."""

    def fetch(self, step: int) -> Path:
        """Return the working copy of the checkpoint of a step."""


@dataclass(frozen=True)
class Elsewhere:
    """The store of a writer whose checkpoints count only once they are in the store."""

    store: CheckpointStore
    is_recorded: Callable[[], bool]
    """Function that returns True if the run's metrics are stored durably; may wait for that."""


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time; lives on rank 0.

    Its thread reports each safe checkpoint to `on_commit`. A checkpoint that cannot be written or stored is reported
    to `on_failure` at the next step boundary. Training continues: earlier checkpoints stay valid.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        before_commit: Callable[[], Files | None],
        on_commit: Callable[[int, Path], None],
        on_failure: Callable[[int, Exception], None],
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.folder = folder
        self.last: Path | None = None
        """Newest checkpoint that has been committed."""
        self.protected: frozenset[int] = frozenset()
        """Steps whose checkpoints are kept, however old they are."""
        self.committed: deque[Path] = deque()
        """Checkpoints that have been committed, until a consumer removes them."""
        self.error: OSError | EnvironmentFault | None = None
        """Error of the last checkpoint that could not be written or stored; None if none has failed."""
        self._elsewhere = elsewhere
        self._written: tuple[int, Path] | None = None
        """Step and path of the newest checkpoint in the folder."""
        self._keep = keep
        self._before_commit = before_commit
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future[None]] | None = None

    @property
    def is_writing(self) -> bool:
        """True if a checkpoint is being written."""
        return self._pending is not None and not self._pending[1].done()

    def submit(self, snapshot: Snapshot) -> None:
        """Wait for the checkpoint before, then start writing this one in the background."""
        self.wait()
        self._pending = snapshot.step, self._thread.submit(self._write, snapshot)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and report its failure if there was one."""
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except (OSError, EnvironmentFault) as error:
            self.error = error
            self._on_failure(step, error)

    def place_of(self, checkpoint: Path) -> str:
        """Return the location of a checkpoint for messages: in the store if the writer has one, else its path."""
        if self._elsewhere is None:
            return str(checkpoint)
        return self._elsewhere.store.place_of(int(checkpoint.name.removeprefix("step-")))

    def complaint(self, step: int) -> str:
        """Return a text that says where the checkpoint of a step could not be saved, why, and what to do."""
        cause = "" if self.error is None else f": {getattr(self.error, 'strerror', None) or self.error}"
        before = self.last.name if self.last else "its last checkpoint"
        if self._elsewhere is not None and self._written is not None and self._written[0] == step:
            return (
                f"in its store{cause}; it is in {self._written[1]}, and the same command on this machine resumes there"
            )
        return f"in {self.folder}{cause}; make room there, and the same command resumes from {before}"

    def put_last(self) -> None:
        """Put the last checkpoint into the store unless it is there, with longer retries. Call it after training."""
        if self._elsewhere is None:
            return
        if self._written is None or self.last == self._written[1]:
            self._prune_elsewhere(self._elsewhere)
            return
        try:
            self._put(*self._written, is_last=True)
        except (OSError, EnvironmentFault) as error:
            self.error = error

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _write(self, snapshot: Snapshot) -> None:
        path = write_checkpoint(self.folder, snapshot, self._before_commit)
        self._written = snapshot.step, path
        prune(self.folder, self._keep, self.protected)
        self._put(snapshot.step, path)

    def _put(self, step: int, path: Path, is_last: bool = False) -> None:
        """Put a whole checkpoint into the store, if there is one, and report that it is safe."""
        if self._elsewhere is not None:
            self._elsewhere.store.put(path, self._elsewhere.is_recorded, is_last)
        self.last = path
        self.committed.append(path)
        self._on_commit(step, path)
        if self._elsewhere is not None:
            self._prune_elsewhere(self._elsewhere)

    def _prune_elsewhere(self, elsewhere: Elsewhere) -> None:
        with suppress(EnvironmentFault):  # checkpoints that are left are removed with the next ones
            elsewhere.store.prune(self._keep, self.protected)
