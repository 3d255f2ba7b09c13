"""Finds the processes that outlive the tests that started them."""

import atexit
import gc
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from uuid import uuid4

import psutil

MARK = "PACELINE_TEST_SESSION"
"""In the environment of whatever the tests start, so that it is found when the process between has ended too."""
GRACE_SECONDS = 60.0
"""How long what is about to end may take: Ray's processes notice only after a while that their head is gone."""
POLL_SECONDS = 0.2
HELPERS = ("from multiprocessing.forkserver import", "from multiprocessing.resource_tracker import")
"""Python's own, which end with the process that uses them."""


def mark() -> str:
    """Mark this process, such that `left_over` knows what comes from it; returns the mark."""
    os.environ[MARK] = f"{os.getpid()}-{uuid4().hex}"
    return os.environ[MARK]


def marked() -> dict[str, str]:
    """Return the variables that mark what a process starts which is no child of this one."""
    return {MARK: os.environ[MARK]} if MARK in os.environ else {}


def left_over(token: str) -> list[psutil.Process]:
    """What still runs of all that was started since this process got its mark, once it has had time to end."""
    if not _started_here(token):
        return []
    gc.unfreeze()
    gc.collect()  # loader processes end with their loader
    gc.freeze()  # pytest collects several times before it ends
    atexit.register(gc.unfreeze)
    deadline = time.monotonic() + GRACE_SECONDS
    while (found := _started_here(token)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def end(processes: list[psutil.Process]) -> None:
    """Kill processes."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a loader process is killed
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass


def described(process: psutil.Process) -> str:
    """A process's number and command line."""
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:500]}"
    except psutil.Error:
        return f"{process.pid}: it has just ended"


def _started_here(token: str) -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    for fork in multiprocessing.active_children():  # from a server that other test processes use, too
        with suppress(psutil.NoSuchProcess):
            children += [psutil.Process(fork.pid), *psutil.Process(fork.pid).children(recursive=True)]
    orphans = [process for process in psutil.process_iter() if process.pid != os.getpid() and _has(process, token)]
    return [process for process in {*children, *orphans} if _counts(process)]


def _has(process: psutil.Process, token: str) -> bool:
    try:
        return process.environ().get(MARK) == token
    except psutil.Error:  # it has ended, or is somebody else's
        return False


def _counts(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # what the fork server forks has its command line, but is no child of this process
        is_helper = process.ppid() == os.getpid() and any(text in " ".join(process.cmdline()) for text in HELPERS)
    except psutil.Error:
        return False
    return not is_helper
