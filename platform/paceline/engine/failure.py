"""A rank that raises takes all ranks down with it within seconds, and all of them end with its reason.

Without this, the others would wait in an all-reduce until the process group times out. The failing rank writes its
reason into the group's store and aborts its communication; a watcher on each other rank sees the reason and aborts
too, so that the collective that it is in returns with an error. A rank that stays in it nevertheless is ended.
"""

import dis
import gc
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

import torch.distributed as dist

from paceline._compat.torch import abort_process_group, default_store
from paceline.engine.cache_filling import NoRoom
from paceline.engine.dist_context import DistContext
from paceline.engine.outcome import Diverged
from paceline.engine.trial_steps import is_out_of_memory
from paceline.errors import FAILED, PacelineError, text_of
from paceline.full_disk import is_full_disk

Result = TypeVar("Result")
Kind = Literal["error", "diverged", "oom", "full_disk"]

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
"""Seconds that a rank whose communication broke waits for another rank's reason before it blames the communication."""
STUCK_SECONDS = 10.0
"""Seconds that a rank may stay in a collective after its communication was aborted, before its process is ended."""
REASON_LENGTH = 4_000
"""Number of characters of an exception's message that are kept."""
TRACEBACK_LENGTH = 100_000
_GLOO = re.compile(r"(?:Gloo connectFullMesh failed with )?\[\S*gloo\S*:\d+\]", re.IGNORECASE)
"""Start of gloo's error texts: a place in its source, such as `[.../gloo/transport/tcp/pair.cc:561]`."""
_REASON = "paceline/failure"
_SEEN = "paceline/failure_seen"


@dataclass(frozen=True)
class Failure:
    """Reason for the failure of a rank, with the details that are reported."""

    rank: int
    reason: str
    """`Type: message` of the exception, and its notes; the message alone for a `PacelineError`."""
    traceback_text: str
    """Traceback of the exception; empty for a `PacelineError`, whose message is complete."""
    exit_code: int = 1
    """Exit code of the command line; a `PacelineError` (such as missing data) has its own."""
    problem_code: str = ""
    """Code of a `PacelineError` (for a `ConfigError`, of its first problem); empty for an error of user code."""
    kind: Kind = "error"
    """`diverged`: the loss or the weights are not finite. `oom`: memory ran out, on a GPU or the host. `full_disk`: a
    disk is full, see `is_full_disk`; with more room, the same training succeeds."""


class RankFailed(RuntimeError):
    """Training failed on one of the ranks; raised on all of them."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"rank {failure.rank}: {failure.reason}")
        self.failure = failure


def failing_together(ranks: DistContext, body: Callable[[], Result]) -> Result:
    """Call `body` such that an exception on any rank ends it on all of them.

    `body` is a function, not a `with` block, since its objects must be released before the peers are freed: see
    `abort_communication`.

    Raises:
        RankFailed: the body raised, or called `sys.exit`, on this or on another rank. Other errors of the
            communication itself (a process that was killed, a time-out) pass through unchanged: they do not come from
            user code.
    """
    board = _Board(ranks) if ranks.world_size > 1 else None
    watcher = _Watcher(board) if board is not None else None
    try:
        return body()
    except (Exception, SystemExit) as error:
        if watcher is not None:
            watcher.stop()
        failure = _find_cause(error, board, ranks) if board is not None else describe(error, 0)
        if failure is None:
            raise
        raise RankFailed(failure) from error
    finally:
        if watcher is not None:
            watcher.stop()


def describe(error: BaseException, rank: int) -> Failure:
    """Return the failure that an exception of this process stands for."""
    kind = kind_of(error)
    if isinstance(error, PacelineError):
        return Failure(rank, _storable(error.message, REASON_LENGTH), "", error.exit_code, error.code, kind)
    reason = _exit_reason(error) if isinstance(error, SystemExit) else text_of(error)
    notes = getattr(error, "__notes__", ())
    told = _storable("\n".join([f"{type(error).__name__}: {reason}", *notes]), REASON_LENGTH)
    lines = "".join(traceback.format_exception(error))
    return Failure(rank, told, _storable(lines, TRACEBACK_LENGTH), kind=kind)


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an error, by what the user has to do about it."""
    if isinstance(error, Diverged):
        return "diverged"
    # samples that do not fit into the cache are reported by a PacelineError whose cause is the original error
    cause = error.__cause__ if isinstance(error, PacelineError) else error
    if isinstance(cause, NoRoom) or (cause and is_out_of_memory(cause)):
        return "oom"
    return "full_disk" if is_full_disk(error) else "error"


def _storable(text: str, length: int) -> str:
    """Return the text in a form that every file, terminal and database accepts, shortened to about `length` characters.

    Lone surrogates stand for the bad bytes of a file name; control characters would steer a terminal.
    """
    if len(text) > length:
        _, _, end = text[-length // 2 :].partition(" ")  # at a blank: half a secret would not be recognised
        begin = text[: length // 2]
        text = f"{begin}\n... {len(text) - len(begin) - len(end):,} characters left out ...\n{end}"
    plain = "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)
    return plain.encode("utf-8", "backslashreplace").decode()


def _exit_reason(error: SystemExit) -> str:
    if error.code is None or isinstance(error.code, int):
        return f"the code ended the program (status {int(error.code or 0)})"
    return f"the code ended the program: {error.code}"


def _find_cause(error: BaseException, board: "_Board", ranks: DistContext) -> Failure | None:
    communication = is_communication_error(error)
    failure = board.wait(GRACE_SECONDS if communication else 0.0)
    if failure is not None:
        board.acknowledge()
        abort_communication(error)  # a third rank may wait for this one
        return failure
    if communication:
        return None
    own = describe(error, ranks.rank)
    board.post(own)
    # another rank may have failed at the same time, and have been the first: all report its reason
    failure = board.read() or own
    board.acknowledge()
    abort_communication(error)
    board.linger()
    return failure


def is_communication_error(error: BaseException) -> bool:
    """Return True if an exception comes from the process group rather than from the code that used it.

    The process group's errors have classes of their own, but gloo's are bare RuntimeErrors. They are recognised by the
    place in gloo's source in their text, and by being raised in compiled code: a user's error may have any text.
    """
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and _GLOO.match(str(error)) is not None and not _was_raised_in_python(error)


def _was_raised_in_python(error: BaseException) -> bool:
    """Return True if the exception began with a `raise` statement, and not in a call of compiled code."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return True
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return dis.opname[instruction] == "RAISE_VARARGS"


def abort_communication(error: BaseException | None = None) -> None:
    """Make every collective operation, here and on the peers, end with an error. Errors on the way are ignored.

    NCCL has an abort for this. Gloo's peers are freed when the sockets close, which happens when the last reference
    to the process group is dropped. The model's DDP wrapper holds one, and the frames of `error` hold the model.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    with suppress(Exception):
        abort_process_group()
    gc.collect()


class _Board:
    """The place in the group's store where a failing rank writes its reason; the first one stays."""

    def __init__(self, ranks: DistContext) -> None:
        self.ranks = ranks
        self._default_store = default_store()  # on rank 0 it is the server, and must outlive the process group
        self.store = self._default_store.clone()
        self._acknowledged = False
        self._found: Failure | None = None

    def post(self, failure: Failure) -> None:
        with suppress(Exception):
            self.store.compare_set(_REASON, "", json.dumps(asdict(failure)))

    def read(self) -> Failure | None:
        """Return the failure that was posted; None without one, or if the store died with its rank before."""
        with suppress(Exception):
            # an acknowledged failure must be kept here: rank 0 then ends, and its store with it
            if self._found is None and self.store.check([_REASON]):
                self._found = Failure(**json.loads(self.store.get(_REASON)))
        return self._found

    def wait(self, seconds: float) -> Failure | None:
        """Return the result of `read`, after waiting up to `seconds` for a failure to appear."""
        deadline = time.monotonic() + seconds
        while (failure := self.read()) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return failure

    def acknowledge(self) -> None:
        """Tell rank 0 that this rank knows the reason."""
        if not self._acknowledged:
            self._acknowledged = True
            with suppress(Exception):
                self.store.add(_SEEN, 1)

    def linger(self) -> None:
        """Keep rank 0, which holds the store, until all ranks know the reason."""
        deadline = time.monotonic() + GRACE_SECONDS
        with suppress(Exception):
            while self.ranks.is_first and time.monotonic() < deadline:
                if self.store.add(_SEEN, 0) >= self.ranks.world_size:
                    return
                time.sleep(0.1)


class _Watcher:
    """Polls the board in a thread, and aborts this rank's communication when a rank has failed."""

    def __init__(self, board: _Board) -> None:
        self._board = board
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="failure-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            if self._board.read() is not None:
                self._board.acknowledge()
                abort_communication()
                self._insist()
                return

    def _insist(self) -> None:
        # gloo can leave a rank in its collective although the peer's process group is gone
        if not self._stopped.wait(STUCK_SECONDS):
            os._exit(FAILED)
