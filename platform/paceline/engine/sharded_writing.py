"""Checkpoints of a state that is sliced over the ranks: every rank copies and writes its own rows.

rank 0:  make the folder -> "ready" -> write own rows -> wait for the others -> state.json, manifest, rename
others:  wait for "ready" -> write own rows -> report it

The files are those that one process would write: in a safetensors file the rows of a tensor follow each other, so each
rank writes ranges of bytes of the same file. The ranks do so in background threads, which exchange messages through the
process group's store: a collective operation would time out while one of them waits for a slow disk.
"""

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import torch
from safetensors.torch import save
from torch import Tensor

from paceline._compat.torch import default_store
from paceline.durable import write_pieces_synced, write_synced
from paceline.engine.checkpoint_files import Snapshot
from paceline.engine.dist_context import DistContext
from paceline.engine.layout import Replicated, Rows
from paceline.private_files import make_folder
from paceline.safetensors_header import TensorEntry, lay_out

POLL_SECONDS = 0.05
CLOSING_SECONDS = 5.0
"""Seconds that a rank waits at most for a message of another rank after training, since that rank may be dead."""
READY = "ready"
"""Message of rank 0: the folder exists."""


class ShardedWriter:
    """Lets all ranks write a checkpoint together. Every rank has one; rank 0's `CheckpointWriter` writes its rows.

    Args:
        folder: folder of the run's checkpoints.
    """

    def __init__(self, folder: Path, ranks: DistContext) -> None:
        self._folder = folder
        self._ranks = ranks
        self._messages = Messages()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-rows")
        self._pending: Future[None] | None = None

    def snapshot(
        self, step: int, parts: Mapping[str, Mapping[str, Tensor]], values: Mapping[str, Any], layout: Replicated
    ) -> "ShardedSnapshot":
        """Copy this rank's rows of all tensors. Every rank must call it.

        Args:
            parts: tensors as this rank holds them, by file and name.
        """
        rows = {file: layout.collect_rows(part) for file, part in parts.items()}
        files = {}
        if self._ranks.is_first:
            files = {file: lay_out(_entries(part)) for file, part in rows.items() if part or file == "model"}
        begins = {file: {name: entry.begin for name, entry in placed.items()} for file, (_, placed) in files.items()}
        token, begins = self._ranks.object_from_first((uuid4().hex, begins))
        pieces = {
            file: [(begins[file][name] + each.first * each.row_bytes, each.values) for name, each in part.items()]
            for file, part in rows.items()
            if file in begins
        }
        headers = {file: header for file, (header, _) in files.items()}
        return ShardedSnapshot(step, {}, values, self._ranks, headers, pieces, self._messages, token)

    def submit(self, snapshot: "ShardedSnapshot") -> None:
        """Start writing this rank's rows. Called on every rank but 0."""
        self._pending = self._thread.submit(snapshot.write_rows, self._folder / snapshot.temporary_name)

    def wait(self) -> None:
        """Wait until this rank's rows are written. If that fails, rank 0 reports it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            with suppress(OSError):
                pending.result()

    def close(self) -> None:
        """End the thread. A checkpoint that is being written is finished if the other ranks answer soon."""
        self._messages.deadline = monotonic() + CLOSING_SECONDS
        self._thread.shutdown()


class Messages:
    """Messages between the ranks' threads about the work of each, in the process group's store."""

    def __init__(self) -> None:
        self.deadline = inf
        """Time of the clock `monotonic` after which messages are not waited for."""
        # a connection of its own: requests to the process group's can block each other
        self._store = default_store().clone()

    @contextmanager
    def reported(self, key: str) -> Iterator[None]:
        """Report the end of the body, or its failure, to the other ranks."""
        failure: list[Any] = []
        try:
            yield
        except BaseException as error:
            failure = [getattr(error, "errno", None) or 0, getattr(error, "strerror", None) or repr(error)]
            raise
        finally:
            self._store.set(key, json.dumps(failure))

    def receive(self, key: str, rank: int) -> None:
        """Wait for the report of a rank.

        Raises:
            OSError: the rank has failed, or did not report before the deadline.
        """
        while not self._store.check([key]):
            if monotonic() > self.deadline:
                raise OSError(errno.ETIMEDOUT, f"rank {rank} ended before it had written its rows")
            sleep(POLL_SECONDS)
        if failure := json.loads(self._store.get(key)):
            raise OSError(failure[0], f"rank {rank}: {failure[1]}")

    def remove(self, key: str) -> None:
        """Remove a report that every rank has received."""
        self._store.delete_key(key)


@dataclass(frozen=True)
class ShardedSnapshot(Snapshot):
    """This rank's rows of the training state at a step boundary; its `tensors` are empty."""

    ranks: DistContext
    headers: Mapping[str, bytes]
    """First bytes of each file, on rank 0."""
    pieces: Mapping[str, Sequence[tuple[int, Tensor]]]
    """This rank's rows, each with its offset in the file in bytes."""
    messages: Messages
    token: str
    """Makes the keys of the messages unique."""

    @property
    def temporary_name(self) -> str:
        """Name of the folder that all ranks write to. A rank of an earlier start that is still alive has another."""
        return f".step-{self.step}.{self.token}.writing"

    def write_tensors(self, folder: Path) -> None:
        """Write rank 0's rows and wait for those of the others."""
        with self.messages.reported(self._key(READY)):
            make_folder(folder)
        work_of_all = [partial(self._write, folder)]
        work_of_all += [partial(self._receive, rank) for rank in range(1, self.ranks.world_size)]
        # the folder must not be removed while a rank writes to it: wait for all ranks, also after a failure
        failures = [failure for work in work_of_all if (failure := _failure_of(work)) is not None]
        self.messages.remove(self._key(READY))
        if failures:
            raise failures[0]

    def write_rows(self, folder: Path) -> None:
        """Write the rows of this rank, which is not rank 0."""
        with self.messages.reported(self._key(self.ranks.rank)):
            self.messages.receive(self._key(READY), 0)
            self._write(folder)

    def _key(self, name: str | int) -> str:
        return f"checkpoint/{self.token}/{name}"

    def _receive(self, rank: int) -> None:
        self.messages.receive(self._key(rank), rank)
        self.messages.remove(self._key(rank))

    def _write(self, folder: Path) -> None:
        for file, rows in self.pieces.items():
            pieces = [(offset, _bytes_of(values)) for offset, values in rows if values.numel()]
            if file in self.headers:
                pieces.insert(0, (0, memoryview(self.headers[file])))
            if pieces:
                write_pieces_synced(folder / f"{file}.safetensors", pieces)


def can_share_files(folder: Path, ranks: DistContext, round_seconds: float) -> bool:
    """Return False if bytes that different ranks write to one file do not all arrive. Every rank must call it.

    On some network file systems, such as those over object stores, the last rank that closes a file replaces what the
    others wrote.
    """
    file = folder / ".shared-file-test"

    def create() -> None:
        make_folder(folder)
        write_synced(file, bytes(ranks.world_size))

    def holds_all() -> None:
        found = file.read_bytes()
        file.unlink()
        if found != b"\1" * ranks.world_size:
            raise OSError(errno.EIO, "bytes are missing")

    write = partial(write_pieces_synced, file, [(ranks.rank, memoryview(b"\1"))])
    failures = [
        ranks.each(partial(_failure_of, work), round_seconds)
        for work in (create if ranks.is_first else _nothing, write, holds_all if ranks.is_first else _nothing)
    ]
    # a folder that cannot be written at all is reported with the first checkpoint
    return not ranks.from_first([float(failures[0] is None and failures[2] is not None)])[0]


def _nothing() -> None:
    """Do nothing: only rank 0 has work."""


def _failure_of(work: Callable[[], object]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None


def _entries(rows: Mapping[str, Rows]) -> dict[str, TensorEntry]:
    return {
        name: TensorEntry(_dtype_name(each.values.dtype), each.shape, each.whole_bytes) for name, each in rows.items()
    }


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a number format in safetensors, which has no public list of them."""
    return str(json.loads(save({"empty": torch.empty(0, dtype=dtype)})[8:])["empty"]["dtype"])


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # the stubs lack it
