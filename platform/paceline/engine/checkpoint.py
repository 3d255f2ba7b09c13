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
    """Write `folder/step-<n>`; `before_commit` is called when all is written, just before the rename.

    What it gives is written, too.

    Raises:
        OSError: the disk is full or not writable. Nothing is left behind.
    """
    final = folder / f"step-{snapshot.step}"
    temporary = folder / snapshot.temporary_name
    for left in folder.glob(f".step-{snapshot.step}.*writing"):  # by a process that was killed
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
    """The newest whole checkpoint of a run. Broken ones on the way are set aside and reported to `on_broken`."""
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
    """A place elsewhere that has a run's checkpoints; the run's own folder has working copies then.

    Its methods raise an `EnvironmentFault` when it cannot be used.
    """

    def place_of(self, step: int) -> str:
        """What a checkpoint is called there."""

    def put(self, checkpoint: Path, is_recorded: Callable[[], bool], is_last: bool = False) -> None:
        """Copy a whole checkpoint there; it counts once `is_recorded`, which may take its time.

        Args:
            is_last: training is over, so that nothing waits: it is tried for longer.
        """

    def prune(self, keep: int, protected: Collection[int] = ()) -> None:
        """Remove all but the newest `keep` checkpoints there, and those of the protected steps."""

    def newest(self, on_broken: Callable[[Path, str], None], is_recorded: Callable[[], bool]) -> Path | None:
        """The working copy of the newest whole checkpoint, which is copied here first where there is none."""

    def fetch(self, step: int) -> Path:
        """The working copy of a certain one."""


@dataclass(frozen=True)
class Elsewhere:
    """Where a writer's checkpoints count only once they are there."""

    store: CheckpointStore
    is_recorded: Callable[[], bool]
    """Whether what records the run has its metrics where it keeps them; may wait for it."""


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time; lives on rank 0.

    Its thread tells `on_commit` of a checkpoint that is safe. One that cannot be written, or put where it counts, is
    reported to `on_failure` at the next boundary, and training continues: the ones before stay valid.
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
        """The newest checkpoint that has been committed."""
        self.protected: frozenset[int] = frozenset()
        """Steps whose checkpoints are kept, however old they are."""
        self.committed: deque[Path] = deque()
        """Checkpoints that have been committed, until somebody takes them out."""
        self.error: OSError | EnvironmentFault | None = None
        """Why the newest one that could not be written was not."""
        self._elsewhere = elsewhere
        self._written: tuple[int, Path] | None = None
        """The newest one that is in the folder."""
        self._keep = keep
        self._before_commit = before_commit
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: tuple[int, Future[None]] | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._pending is not None and not self._pending[1].done()

    def submit(self, snapshot: Snapshot) -> None:
        """Start writing; waits for the one before."""
        self.wait()
        self._pending = snapshot.step, self._thread.submit(self._write, snapshot)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and tell how it went."""
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except (OSError, EnvironmentFault) as error:
            self.error = error
            self._on_failure(step, error)

    def place_of(self, checkpoint: Path) -> str:
        """What a checkpoint is called where it counts."""
        if self._elsewhere is None:
            return str(checkpoint)
        return self._elsewhere.store.place_of(int(checkpoint.name.removeprefix("step-")))

    def complaint(self, step: int) -> str:
        """Where the checkpoint of a step could not be saved, why, and what is to be done."""
        cause = "" if self.error is None else f": {getattr(self.error, 'strerror', None) or self.error}"
        before = self.last.name if self.last else "its last checkpoint"
        if self._elsewhere is not None and self._written is not None and self._written[0] == step:
            return (
                f"in its store{cause}; it is in {self._written[1]}, and the same command on this machine resumes there"
            )
        return f"in {self.folder}{cause}; make room there, and the same command resumes from {before}"

    def put_last(self) -> None:
        """Try for a while to put the last checkpoint where it counts, unless it is there. Training is over."""
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
        """Wait for what is being written and end the thread."""
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
        """Put a whole checkpoint where it counts, and tell that it is safe."""
        if self._elsewhere is not None:
            self._elsewhere.store.put(path, self._elsewhere.is_recorded, is_last)
        self.last = path
        self.committed.append(path)
        self._on_commit(step, path)
        if self._elsewhere is not None:
            self._prune_elsewhere(self._elsewhere)

    def _prune_elsewhere(self, elsewhere: Elsewhere) -> None:
        with suppress(EnvironmentFault):  # what is left goes with the next ones
            elsewhere.store.prune(self._keep, self.protected)
