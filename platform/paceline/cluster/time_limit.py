"""Time limit for user code in a separate process, which reports where it was when it is ended.

The process itself keeps the time, in a thread of the interpreter that needs no lock of Python's; what hangs may hold
it.
"""

import faulthandler
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.config.own_files import is_own, shown
from paceline.errors import EnvironmentFault

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_file: int | None = None


class TookTooLong(EnvironmentFault):
    """Something of the user's did not come to its end."""

    def __init__(self, doing: str, seconds: float, place: str, function: str) -> None:
        """Args:
        place: `file:line` of the user's own code, if any of it is on the stack.
        function: in which that is.
        """
        self.reason = f"{doing} took more than {seconds:g} s"
        self.place = place
        super().__init__(
            f"{self.reason}, and was given up: it was at {place}, in {function}",
            "took-too-long",
            doing=doing,
            seconds=seconds,
            place=place,
            function=function,
        )


def leave_behind_in(descriptor: int) -> None:
    """Say where this separate process is to write where it was."""
    global _file
    _file = descriptor


@contextmanager
def at_most(seconds: float, doing: str) -> Iterator[None]:
    """End the process when the body takes longer; not within itself.

    Args:
        doing: what the body does, for the message, such as `loading the data`.
    """
    assert _file is not None, "only a separate process may call this"
    os.write(_file, f"{json.dumps([doing, seconds])}\n".encode())
    faulthandler.dump_traceback_later(seconds, exit=True, file=_file)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def hang_of(left_behind: str) -> TookTooLong | None:
    """What ended a process, by what it has left behind; None when it was not this.

    The main thread's stack comes last, its innermost frame first.
    """
    told, timeout, stacks = left_behind.rpartition("Timeout (")
    if not timeout:
        return None
    doing, seconds = json.loads(told.splitlines()[-1])
    frames = _FRAME.findall(stacks.rpartition("Thread 0x")[2]) or [("<unknown>", "0", "<unknown>")]
    file, line, function = next((frame for frame in frames if is_own(frame[0])), frames[0])
    return TookTooLong(doing, seconds, shown(file, int(line)), function)
