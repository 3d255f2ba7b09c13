"""The process that uploads to MLflow, forked from one that has imported MLflow: that is most of what it costs."""

import os
import subprocess
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TextIO

from support.forkserver import CONTEXT, become_ordinary

NAME = "uploader"
"""What the system calls the process."""


class ForkedUploader:
    """A process with what `UploaderProcess` uses of a `Popen`. It is no child of the process that trains."""

    def __init__(self) -> None:
        orders, pipe = CONTEXT.Pipe(duplex=False)
        errors = Connection(os.dup(2), readable=False)
        self._process = CONTEXT.Process(target=_upload, args=(orders, errors, os.getcwd(), dict(os.environ)))
        with orders, errors:
            self._process.start()
        self.pid = self._process.pid
        self.stdin: TextIO = os.fdopen(os.dup(pipe.fileno()), "w")
        pipe.close()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(NAME, timeout or 0.0)
        return code

    def kill(self) -> None:
        self._process.kill()


def _upload(orders: Connection, errors: Connection, folder: str, environment: Mapping[str, str]) -> None:
    become_ordinary()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.dup2(orders.fileno(), 0)
    os.dup2(errors.fileno(), 2)
    orders.close()
    errors.close()
    with open("/proc/self/comm", "w") as file:
        file.write(NAME)
    import json
    import sys

    from paceline.tracking.uploader_process import main

    sys.stdin = os.fdopen(0)
    order = json.loads(sys.stdin.readline() or "{}")
    if order:
        sys.path[:] = order["path"]
        main({**order, "starter": os.getppid()})
