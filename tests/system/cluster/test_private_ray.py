"""A command's private Ray: who can reach it, what is left of it, and what happens when one of its processes dies."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from paceline.cluster.private_ray import PREFIX, private_ray_folder, remove_dead_folders
from support.cluster.job_cluster import wait_until
from support.cluster.listening import require_private
from support.cluster.user_folder import end_pauses, enter_user_folder
from support.modes import PRIVATE, modes_in

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

STEPS = 24
RUN = "import runpy; runpy.run_module('paceline', run_name='__main__', alter_sys=True)"
PARTS = {"controller": "ray::TrainController", "raylet": "raylet", "gcs": "gcs_server"}
"""How the names of the processes begin that are killed."""


def test_a_folder_is_kept_as_long_as_its_node_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / f"{PREFIX}1"
        (folder / "r" / "session_1" / "sockets").mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as raylet:
            raylet.bind(str(folder / "r" / "session_1" / "sockets" / "raylet"))
            raylet.listen()
            remove_dead_folders(Path(root))
            assert folder.exists()
        remove_dead_folders(Path(root))
        assert not folder.exists()


def test_a_folder_whose_node_ends_meanwhile_is_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as root:
        monkeypatch.setenv("RAY_TMPDIR", root)
        dying, failed = Path(root) / f"{PREFIX}1", Path(root) / f"{PREFIX}2"
        (dying / "r" / "session_1" / "sockets").mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as raylet:
            raylet.bind(str(dying / "r" / "session_1" / "sockets" / "raylet"))
            raylet.listen()
            with private_ray_folder():
                raylet.close()
                failed.mkdir()  # the logs of another command that has failed in the meantime
                assert dying.exists()
        assert [each.name for each in Path(root).iterdir()] == [failed.name]


def titled(log: Path) -> "subprocess.Popen[bytes]":
    """A process with a title in place of its arguments, as Ray's agents and workers are, that writes a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        return subprocess.Popen(["ray::DashboardAgent", "600"], executable="/bin/sleep", stdout=file)


def test_no_process_of_a_killed_driver_keeps_its_folder(tmp_path: Path) -> None:
    """As agents do, which write their logs until they notice that their GCS is dead."""
    folder = tmp_path / f"{PREFIX}dead"
    agent, other = titled(folder / "r" / "session_1" / "agent.log"), titled(tmp_path / "agent.log")
    try:
        assert remove_dead_folders(tmp_path) == []
        assert agent.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        assert not folder.exists()
    finally:
        for each in (agent, other):
            each.kill()
            each.wait()


@pytest.mark.parametrize("fails", [False, True])
def test_no_process_outlives_its_private_ray(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """As Ray's agents do, whose GCS was killed. Other programs that have to do with the folder are left alone."""
    with tempfile.TemporaryDirectory() as root:
        monkeypatch.setenv("RAY_TMPDIR", root)
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        with suppress(ZeroDivisionError), private_ray_folder() as folder:
            agent = subprocess.Popen([*sleep, "/packages/ray/agent.py", f"--session-dir={folder}/session_1"])
            worker = titled(folder / "session_1" / "worker.out")
            others = [
                subprocess.Popen([*sleep, f"{folder}/logs"]),
                subprocess.Popen([*sleep, "/packages/ray/agent.py"]),
            ]
            assert agent.poll() is None
            if fails:
                raise ZeroDivisionError
        try:
            assert [each.wait(60) for each in (agent, worker)] == [-signal.SIGKILL, -signal.SIGKILL]
            assert [each.poll() for each in others] == [None, None]
        finally:
            for each in (agent, worker, *others):
                each.kill()
                each.wait()


class Command:
    """A `paceline train` that runs with Ray's files in a folder of their own.

    Args:
        first: Python that runs before it.
    """

    def __init__(self, home: Path, rays_files: Path, *arguments: str, first: str = "") -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "RAY_"))}
        self.home, self.log = home, home / f"log-{len(list(home.glob('log-*')))}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{first}\n{RUN}", "train", "train.yaml", *arguments],
                cwd=home,
                env={**clean, "RAY_TMPDIR": str(rays_files)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def shown(self) -> str:
        return self.log.read_text()

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def until(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: condition() or self.process.poll() is not None, 240)
        assert self.process.poll() is None, self.shown

    def ended(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)

    def kill(self, part: str) -> None:
        (victim,) = (each for each in self.processes() if each.name().startswith(PARTS[part]))
        victim.send_signal(signal.SIGKILL)


@pytest.fixture
def rays_files() -> Iterator[Path]:
    """In place of the system's temporary folder; its path must be short."""
    with tempfile.TemporaryDirectory(prefix="rays", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


Start = Callable[..., Command]


@pytest.fixture
def start(
    tmp_path: Path, rays_files: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Starts commands, which are ended with the test."""
    tree = {
        "name": "private",
        "model": {"path": "own_code:net"},
        "task": {"path": "own_code:OwnTask", "args": {"pause": 0.3}},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": STEPS // 6, "log_every_n_steps": 1},
        "scaling": {"num_workers": 2, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
    }
    home = enter_user_folder(tmp_path, prepared_database, monkeypatch)
    (home / "train.yaml").write_text(json.dumps(tree))
    started: list[Command] = []

    def begin(*arguments: str, first: str = "") -> Command:
        started.append(Command(home, rays_files, *arguments, first=first))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            left = command.processes()
            for process in left:
                process.kill()
            command.process.wait()


def manifests(home: Path, name: str = "private") -> list[Path]:
    return list(home.glob(f"runs/{name}/*/checkpoints/step-*/MANIFEST.json"))


def statuses(home: Path) -> list[str]:
    return [json.loads(file.read_text())["status"] for file in home.glob("runs/private/*/run.json")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "workers"),
    [("controller", 0), ("raylet", 2), ("gcs", 2)],
)
def test_a_killed_process_of_ray_ends_the_command_in_words_and_the_same_command_resumes(
    start: Start, rays_files: Path, tmp_path: Path, part: str, workers: int
) -> None:
    command = start()
    command.until(lambda: manifests(tmp_path))
    (folder,) = rays_files.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    require_private(command.processes())

    command.kill(part)
    assert command.ended(60) == 1
    assert "[ray-process-died]" in command.shown
    for noise in ("Traceback", "class_name", "exit detail", "core_worker.cc", "rank -1", "died unexpectedly"):
        assert noise not in command.shown, command.shown
    assert statuses(tmp_path) == ["failed"]
    assert list(folder.rglob("raylet.out")), "Ray's logs may tell why"

    end_pauses(tmp_path)
    again = start(f"scaling.num_workers={workers}")
    assert again.ended() == 0, again.shown
    assert statuses(tmp_path) == ["finished"]
    assert "resuming from step" in again.shown
    assert modes_in(tmp_path / "runs") == PRIVATE
    assert stat.S_IMODE((tmp_path / "mlruns").stat().st_mode) == 0o700
    # what is left is removed by the next command that starts a Ray
    assert list(rays_files.iterdir()) == ([] if workers else [folder])


@pytest.mark.slow
def test_a_stopped_rank_that_never_answers_is_named_and_replaced(start: Start, tmp_path: Path) -> None:
    """Ray Train starts the group again once the other rank has waited for long enough."""
    short = "from paceline.cluster import heartbeats; heartbeats.SILENCE_SECONDS = 8"
    command = start("parallel.timeout_seconds=25", first=short)
    command.until(lambda: manifests(tmp_path))
    workers = [each for each in command.processes() if each.name().startswith("ray::RayTrainWorker")]
    stopped = max(workers, key=lambda each: each.pid)
    stopped.send_signal(signal.SIGSTOP)
    command.until(lambda: f"process {stopped.pid} " in command.shown)
    assert "[rank-silent]" in command.shown
    end_pauses(tmp_path)
    assert command.ended() == 0, command.shown
    assert "[group-lost]" in command.shown
    assert "Traceback" not in command.shown
    assert statuses(tmp_path) == ["finished"]
    assert not stopped.is_running()


@pytest.mark.slow
def test_two_commands_have_a_private_ray_each(start: Start, rays_files: Path, tmp_path: Path) -> None:
    first, second = start(), start("name=second")
    second.until(lambda: manifests(tmp_path) and manifests(tmp_path, "second"))
    assert len(list(rays_files.iterdir())) == 2
    end_pauses(tmp_path)
    assert (first.ended(), second.ended()) == (0, 0), first.shown + second.shown
    assert list(rays_files.iterdir()) == []
