"""The end of a process that has imported torch: Python would free all of it, for 1.5 s of CPU time."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


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
