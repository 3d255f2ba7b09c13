"""A user's folder in which a command is given, and an MLflow server where that is the victim."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from support.chaos.process_tree import MARK, ProcessTree
from support.runs.command_process import CommandProcess
from support.tracking.killing import Server

FILE = "chaos.yaml"
OWN_NET = """
import time

import torch


class Net(torch.nn.Linear):
    def __init__(self, pause):
        super().__init__(8, 4)
        self.pause = pause

    def forward(self, batch):
        time.sleep(self.pause if self.training else 0.0)
        return super().forward(batch)


def build(pause=0.02):
    return Net(pause)
"""


class Scene:
    """One command, given as often as it takes.

    Args:
        folder: of the user, empty.
        rays_folder: for Ray's files; its path must be short.
        config: the experiment file.
        database: the fixture `prepared_database`.
        server_port: of an MLflow server that is started beside; None for a database without one.
        forks: whether the command is forked, which is quick; one that starts Ray cannot be.
    """

    def __init__(
        self,
        folder: Path,
        rays_folder: Path,
        config: Mapping[str, Any],
        command: str,
        database: Path,
        server_port: int | None = None,
        forks: bool = True,
    ) -> None:
        self.rays_folder = rays_folder
        self.tree = ProcessTree(folder, str(folder))
        variables = {MARK: str(folder), "RAY_TMPDIR": str(rays_folder)}
        self._server = Server(folder.parent, server_port) if server_port is not None else None
        if self._server is not None:
            variables["MLFLOW_TRACKING_URI"] = self._server.uri
        self.user = CommandProcess(folder, variables, forks)
        self.database = folder.parent / "mlflow.db" if self._server else folder / "mlflow.db"
        shutil.copy(database, self.database)
        (folder / FILE).write_text(yaml.safe_dump(dict(config)))
        (folder / "own_net.py").write_text(OWN_NET)
        self._command = command

    @property
    def folder(self) -> Path:
        """The user's."""
        return self.user.folder

    @property
    def is_running(self) -> bool:
        """Whether the newest command has not ended yet."""
        return self.user.process.is_alive()

    def open(self) -> None:
        """Start what has to be there before the command."""
        if self._server is not None:
            self._server.start()
            self._server.wait()

    def start(self) -> None:
        """Give the command."""
        self.user.give(self._command, FILE, "--json")

    def end(self) -> int:
        """Wait for the command's end; its exit code."""
        return self.user.end()

    def answer(self) -> dict[str, Any]:
        """Return the JSON of the newest command."""
        return dict(json.loads((self.folder / "stdout").read_text()))

    def find(self, role: str) -> list[psutil.Process]:
        """The processes of a role."""
        if role not in ("driver", "server"):
            return self.tree.find(role)
        pid = self.user.process.pid if role == "driver" else self._server and self._server.pid
        return [psutil.Process(pid)] if pid and psutil.pid_exists(pid) and (self.is_running or role == "server") else []

    def kill(self, victim: psutil.Process) -> None:
        """SIGKILL; an MLflow server is started again at once, as a service would be."""
        if self._server is not None and victim.pid == self._server.pid:
            self._server.kill()
            self._server.start()
        else:
            victim.kill()

    def journals(self) -> dict[str, list[MetricPoint]]:
        """The points of all runs, by the run's folder."""
        return {
            str(file.parents[1].relative_to(self.folder)): [
                MetricPoint.from_json(entry.content) for entry in Journal(file).read() if entry.kind == "point"
            ]
            for file in sorted(self.folder.glob(f"runs/**/tracking/{JOURNAL_FILE}"))
        }

    def seconds_to_new_points(self, since: float, ended: float) -> float:
        """How long it took until each run that was training had a new point again; to the end where none was.

        Args:
            since, ended: times of `time.monotonic`.
        """
        moment_ms = 1000 * (time.time() - time.monotonic() + since)
        taken = [[point.timestamp_ms for point in points] for points in self.journals().values()]
        gaps = [min(at for at in times if at > moment_ms) - moment_ms for times in taken if _spans(times, moment_ms)]
        return max(gaps) / 1000 if gaps else ended - since

    def sync(self) -> None:
        """Send what MLflow has not got yet, because nobody answered there when the command ended."""
        assert self._server is not None
        self._server.wait()
        self.user.give("sync")
        assert self.user.end() == 0, self.user.told()

    def leave(self) -> None:
        """Leave no process."""
        self.user.leave()
        self.tree.end()
        if self._server is not None:
            self._server.kill()


def _spans(times: list[int], moment_ms: float) -> bool:
    return any(at <= moment_ms for at in times) and any(at > moment_ms for at in times)
