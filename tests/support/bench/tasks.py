"""Tasks that tell where they are built, die or hang."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from support.toys import PointsTask

WHERE = "PACELINE_TEST_PROCESSES"
"""Environment variable with the file that processes are listed in."""


class Listed(PointsTask):
    """Adds its process to a file."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        with Path(os.environ[WHERE]).open("a") as file:
            print(os.getpid(), file=file)


class Dying(PointsTask):
    """Ends its process, as the kernel does with one that takes too much memory."""

    def forward(self, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(PointsTask):
    def forward(self, batch: Any) -> Any:
        time.sleep(3600.0)
