"""The processes that a command has started, and the role that each of them has."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.tracking import forked_uploader

MARK = "CHAOS_TREE"
"""In the environment of a command: what it starts inherits it, and keeps it when the command is gone."""
TITLES = {
    "controller": "ray::TrainController",
    "worker": "ray::RayTrainWorker",
    "raylet": "raylet",
    "gcs": "gcs_server",
}
"""By role, how the name of the program begins. Ray names its actors' processes by their class."""
COORDINATORS = ("ray::RunCoordinator", "ray::SweepCoordinator")
UPLOADER = "from paceline.tracking.uploader_process import main"
"""In its program; the server of forks names the module, too."""


@dataclass(frozen=True)
class ProcessTree:
    """What comes from the commands that are given in one folder, alive or orphaned.

    Args:
        folder: that the commands work in; a fork has it, but no mark.
        mark: value of `MARK`.
    """

    folder: Path
    mark: str

    def processes(self) -> list[psutil.Process]:
        """All that are alive."""
        return [each for each in psutil.process_iter() if each.pid != os.getpid() and self._owns(each)]

    def find(self, role: str) -> list[psutil.Process]:
        """Those of a role, except `driver` and `server`, which are known to who started them."""
        return [process for process in self.processes() if role_of(process) == role]

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    def _owns(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return process.environ().get(MARK) == self.mark or Path(process.cwd()) == self.folder
        except psutil.Error:  # it has ended, or is another user's
            return False


def role_of(process: psutil.Process) -> str:
    """Return the role of a process; empty for one that is never a victim."""
    with suppress(psutil.Error):
        if process.name() == forked_uploader.NAME:  # a fork has the command line of the server that it comes from
            return "uploader"
        return next(_roles(process.cmdline()), "")
    return ""


def _roles(command: list[str]) -> Iterator[str]:
    title = Path(command[0]).name if command and not command[0].startswith("ray::") else "".join(command[:1])
    if any(UPLOADER in argument for argument in command):
        yield "uploader"
    if title.startswith(COORDINATORS):
        yield "coordinator"
    for role, beginning in TITLES.items():
        if title.startswith(beginning):
            yield role
