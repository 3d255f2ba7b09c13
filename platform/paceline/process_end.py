"""Ends this process: at once, where Python would free all of torch for 1.5 s of CPU time, or with its starter."""

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

WATCH_SECONDS = 0.5
"""Interval at which a process looks whether its starter is still there."""


def end_process(code: int) -> NoReturn:
    """End the process as `sys.exit` does, once threads have ended and what is registered with `atexit` has been called,
    but free nothing."""
    # what Python itself calls then; nothing public waits for threads and ends the idle ones of executors
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_with_starter(starter: int) -> None:
    """Have this process end as soon as the one that started it has ended, however that came about.

    The system could report it at once, but only on Linux, and of the thread that started it, which may end before.

    Args:
        starter: its process id.
    """
    threading.Thread(target=_watch, args=(starter,), daemon=True).start()


def _watch(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
