"""A training, an MLflow server and a proxy between them, of which any may be killed; and what must hold in the end."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from paceline.tracking import metrics
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_server import start_server, wait_until_up
from support.chaos.process_tree import ProcessTree
from support.runs.command_process import PATIENCE_SECONDS, CommandProcess
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.recording import DEAD, client_of

NAME = "killed"
STEPS = 160
CONFIG = """\
name: killed
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 40, log_every_n_steps: 1, evaluate_every_n_epochs: 5}
checkpoint: {every_n_steps: 10}
tracking: {offline: allow}
"""
OWN_NET = """
import os
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent


class Net(torch.nn.Linear):
    \"\"\"Takes its time, tells its process, and before it may end does some steps only after each start.\"\"\"

    steps = 0

    def forward(self, batch):
        if self.training:
            Net.steps += 1
            self.wait(0.1)
            while Net.steps > 25 and not (HERE / "go").exists():
                self.wait(0.1)
        return super().forward(batch)

    def wait(self, seconds):
        (HERE / "worker").write_text(str(os.getpid()))
        if not (HERE / "go").exists():
            time.sleep(seconds)


def build():
    return Net(8, 4)
"""
IN_PROCESS = ("scaling.num_workers=0", "scaling.use_gpu=false")
"""Overrides, with which the command trains in its own process."""
DETERMINED = (metrics.TRAIN_LOSS, metrics.VAL_LOSS, metrics.VAL_ACCURACY, metrics.LR, metrics.EPOCH)
"""Metrics that have the same values however often training was interrupted."""
FAULTS: tuple[str | int, ...] = ("refuse", 503, 401, "drop", "delay")
PATHS = ("log-batch", "runs/", "")


@dataclass(frozen=True)
class Moment:
    """Something that goes wrong."""

    victim: str
    """What is killed: `driver`, `worker`, `server` or `uploader`."""
    seconds: float
    """How long after training has been heard of again."""
    fault: str | int
    """What the proxy does meanwhile to some requests."""
    path: str
    """To those whose address has this in it."""
    times: int


def moments(seed: int, count: int, victims: Sequence[str]) -> list[Moment]:
    """So many, always the same ones for a seed; each victim comes up."""
    chooser = random.Random(seed)
    chosen = [victims[number % len(victims)] for number in range(count)]
    chooser.shuffle(chosen)
    return [
        Moment(victim, chooser.uniform(0.0, 2.0), chooser.choice(FAULTS), chooser.choice(PATHS), chooser.randint(1, 4))
        for victim in chosen
    ]


class Server:
    """A real MLflow server, which may be killed and comes back at the same address with the same database."""

    def __init__(self, folder: Path, port: int) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        self._database, self._log, self._port = folder / "mlflow.db", folder / "server.log", port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The number of its process, if it was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._process = start_server(f"sqlite:///{self._database}", self._port, log=self._log)

    def wait(self) -> None:
        assert self._process is not None
        wait_until_up(self._process, self.uri, PATIENCE_SECONDS)

    def kill(self) -> None:
        """SIGKILL for the server and its workers."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Training(CommandProcess):
    """`paceline train`, which may be killed, and is resumed by the same command."""

    def __init__(self, folder: Path, uri: str, overrides: Sequence[str], forks: bool = True) -> None:
        super().__init__(folder, {"MLFLOW_TRACKING_URI": uri}, forks)
        self._overrides = overrides
        (folder / "killed.yaml").write_text(CONFIG)
        (folder / "own_net.py").write_text(OWN_NET)

    def start(self) -> None:
        self.give("train", "killed.yaml", "--json", *self._overrides)

    def kill_worker(self) -> None:
        """SIGKILL for the process that trains."""
        deadline = time.monotonic() + 60
        while not (process := (self.folder / "worker").read_text()):  # a new one is just writing its number down
            assert time.monotonic() < deadline, "no process that trains has told its number"
            time.sleep(0.001)
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)

    def kill_uploader(self) -> None:
        """SIGKILL for the process that sends to MLflow, if it has come up yet."""
        for process in ProcessTree(self.folder, "").find("uploader"):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def await_steps(self) -> None:
        """Wait until training does a step."""
        worker = self.folder / "worker"
        worker.unlink(missing_ok=True)
        self.until(lambda: worker.exists() and worker.read_text())

    def let_end(self) -> dict[str, Any]:
        """Let it come to its end; its result."""
        (self.folder / "go").touch()
        return self.result()

    def recorded(self) -> list[MetricPoint]:
        """The points in the journal of the only run."""
        (tracking,) = self.folder.glob(f"runs/{NAME}/*/tracking")
        entries = Journal(tracking / JOURNAL_FILE).read()
        return [MetricPoint.from_json(entry.content) for entry in entries if entry.kind == "point"]


@contextmanager
def scene(
    folder: Path, database: Path, port: int, overrides: Sequence[str], forks: bool = True
) -> Iterator[tuple[Training, Server, FaultyProxy]]:
    """A training, and a server behind a proxy; neither is started."""
    server = Server(folder, port)
    (folder / "mlflow.db").write_bytes(database.read_bytes())
    with FaultyProxy(server.uri) as proxy:
        training = Training(folder / "work", proxy.uri, overrides, forks)
        try:
            yield training, server, proxy
        finally:
            training.leave()
            server.kill()


def play(chosen: Sequence[Moment], training: Training, server: Server, proxy: FaultyProxy) -> dict[str, Any]:
    """Let everything go wrong, one after the other, and everything come right in the end; the training's result."""
    training.start()
    for moment in chosen:
        training.await_steps()
        proxy.order(moment.fault, moment.path, moment.times)
        time.sleep(moment.seconds)
        if moment.victim == "server":
            server.kill()
            server.start()
        elif moment.victim == "driver":
            training.kill()
            training.start()
        elif moment.victim == "uploader":
            training.kill_uploader()
        else:
            training.kill_worker()
    result = training.let_end()
    server.wait()
    proxy.forgive()
    training.give("sync")
    assert training.end() == 0, training.told()
    return result


def undisturbed(folder: Path) -> tuple[dict[str, Any], list[MetricPoint]]:
    """The same training without trouble, and without an MLflow that answers: its result, and its points."""
    training = Training(folder, DEAD, IN_PROCESS)
    training.start()
    return training.let_end(), training.recorded()


# What must hold


@dataclass(frozen=True)
class InMlflow:
    """What MLflow has in the end: names of experiments, statuses of the runs that are not deleted, and points."""

    experiments: list[str]
    statuses: list[str]
    points: list[MetricPoint]


def read_mlflow(uri: str) -> InMlflow:
    client = client_of(uri)
    experiments = client.search_experiments()
    runs = client.search_runs([experiment.experiment_id for experiment in experiments])
    points = [
        MetricPoint(point.key, point.value, point.step, point.timestamp)
        for run in runs
        for key in sorted(run.data.metrics)
        for point in client.get_metric_history(run.info.run_id, key)
    ]
    return InMlflow(sorted(each.name for each in experiments), [run.info.status for run in runs], points)


def complaints(journal: Sequence[MetricPoint], mlflow: InMlflow, expected: Sequence[MetricPoint]) -> dict[str, Any]:
    """What is not as it must be: MLflow has what the journal has, each once, and it is what undisturbed training gives.

    Args:
        expected: the points of a training that nothing happened to.
    """
    mine, theirs = ({(p.key, p.step): p.value for p in points if p.key in DETERMINED} for points in (journal, expected))
    found: dict[str, Any] = {
        "experiments": mlflow.experiments if mlflow.experiments != ["Default", NAME] else [],
        "statuses": mlflow.statuses if mlflow.statuses != ["FINISHED"] else [],
        "twice in the journal": _twice(journal),
        "twice in MLflow": _twice(mlflow.points),
        "lacking": set(journal) - set(mlflow.points),
        "strange": set(mlflow.points) - set(journal),
        "different": {at for at in mine | theirs if mine.get(at) != theirs.get(at)},
    }
    return {kind: those for kind, those in found.items() if those}


def _twice(points: Sequence[MetricPoint]) -> list[tuple[str, int]]:
    return [at for at, times in Counter((point.key, point.step) for point in points).items() if times > 1]
