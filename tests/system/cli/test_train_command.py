"""`train` without Ray: exit codes, signals, resuming, and what goes to stdout and to stderr.

It is a process where signals and streams are tested, and in this process where only its answer is.
"""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.cluster.listener import STOPPING
from support.cli.command import Ended, run_in_process
from support.runs.command_process import CommandProcess

CONFIG = """\
name: tiny
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
trainer: {epochs: 25, log_every_n_steps: 5}
scaling: {num_workers: 0, use_gpu: false}
checkpoint: {every_n_epochs: 5}
"""
STEPS = 100
OWN_NET = """
import os
import time

import torch


class Net(torch.nn.Linear):
    def forward(self, batch):
        if self.training:
            time.sleep(float(os.environ.get("PAUSE_SECONDS", 0)))
        if os.environ.get("MISTAKE"):
            raise ZeroDivisionError("the user's own mistake")
        return super().forward(batch)


def build():
    print("the user's own words")
    return Net(8, 4)
"""


def has_traceback(text: str) -> bool:
    """Whether a traceback of Python's stands in a text."""
    return "Traceback (most recent call last)" in text


def ended(process: CommandProcess) -> Ended:
    """Wait for a command to end."""
    return Ended(process.end(), (process.folder / "stdout").read_text(), process.told())


@pytest.fixture(scope="module")
def make_folder(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a working folder with a config, the user's code and an empty database."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("work")
        (folder / "tiny.yaml").write_text(CONFIG)
        (folder / "own_net.py").write_text(OWN_NET)
        shutil.copy(prepared_database, folder / "mlflow.db")
        return folder

    return make


@pytest.fixture(scope="module")
def finished(make_folder: Callable[[], Path]) -> tuple[Ended, Path]:
    """A run with `--resume never` beside an unfinished one of its name, and its folder."""
    folder = make_folder()
    unfinished = folder / "runs" / "tiny" / "20200101-000000-aaaaaa"
    unfinished.mkdir(parents=True)
    (unfinished / "run.json").write_text(json.dumps({"status": "running", "config": {"name": "tiny"}}))
    command = CommandProcess(folder, {})
    command.give("train", "tiny.yaml", "--json", "--new")
    try:
        return ended(command), folder
    finally:
        command.leave()


def test_a_finished_run_prints_one_json_object_and_plain_lines(finished: tuple[Ended, Path]) -> None:
    ended, _ = finished
    assert ended.code == 0, ended.err
    result = ended.json
    assert result["status"] == "finished"
    assert result["steps"] == STEPS
    assert set(result["metrics"]) >= {"train/loss", "val/loss", "val/accuracy", "lr"}
    assert result["samples_per_second"] > 0
    assert result["peak_memory_bytes"] > 1 << 20
    assert result["wall_seconds"] > 0
    assert Path(result["checkpoint"]).name == f"step-{STEPS}"
    assert (Path(result["checkpoint"]) / "MANIFEST.json").is_file()
    assert len(bytes.fromhex(result["weights_sha256"])) == 32
    assert "the user's own words" in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_resume_never_starts_a_new_run_and_leaves_the_unfinished_one(finished: tuple[Ended, Path]) -> None:
    ended, folder = finished
    runs = folder / "runs" / "tiny"
    assert ended.json["run_id"] != "20200101-000000-aaaaaa"
    assert json.loads((runs / "20200101-000000-aaaaaa" / "run.json").read_text())["status"] == "running"


def test_an_exception_of_the_user_ends_with_1_its_text_and_its_traceback(make_folder: Callable[[], Path]) -> None:
    ended = run_in_process(make_folder(), "train", "tiny.yaml", "--json", MISTAKE="1")
    assert ended.code == 1, ended.err
    assert "the user's own mistake" in ended.err.splitlines()[-1]
    assert has_traceback(ended.err)
    assert "own_net.py" in ended.err
    assert "the user's own mistake" in ended.json["error"]
    assert ended.json["status"] == "failed"


class Stopped(NamedTuple):
    """A run that was interrupted while a second one of its name tried to start."""

    ended: Ended
    second: Ended
    folder: Path


@pytest.fixture(scope="module")
def stopped(make_folder: Callable[[], Path]) -> Stopped:
    """One SIGINT in mid-training."""
    folder = make_folder()
    running = CommandProcess(folder, {"PAUSE_SECONDS": "0.2"})
    running.give("train", "tiny.yaml", "--json")
    try:
        running.until(lambda: "val/accuracy" in running.told())  # on the line of a step in mid-training
        second = run_in_process(folder, "train", "tiny.yaml")
        running.interrupt()
        return Stopped(ended(running), second, folder)
    finally:
        running.leave()


def test_a_second_run_of_the_same_name_is_refused(stopped: Stopped) -> None:
    assert stopped.second.code == 3
    assert "[run-in-use]" in stopped.second.err
    assert not has_traceback(stopped.second.err)


def test_ctrl_c_saves_and_exits_with_130(stopped: Stopped) -> None:
    assert stopped.ended.code == 130, stopped.ended.err
    result = stopped.ended.json
    assert result["status"] == "interrupted"
    assert 4 <= result["steps"] < STEPS
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"
    assert not has_traceback(stopped.ended.err)
    assert stopped.ended.err.count(STOPPING) == 1


# Signals while a run that is over is recorded, by an MLflow that answers that it is there and then never again


@pytest.fixture(scope="module")
def hanging() -> Iterator[str]:
    """The address of a server that has room for everybody who waits."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def _handle(self) -> None:
            if not self.path.endswith("/health"):
                over.wait()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"OK")

        do_GET = do_POST = _handle  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    over.set()
    server.shutdown()
    server.server_close()


def recorded_end(folder: Path) -> tuple[str, list[str]]:
    """The status in a run's own file, and those in its journal."""
    (file,) = folder.glob("runs/tiny/*/run.json")
    entries = map(json.loads, (file.parent / "tracking" / "journal.jsonl").read_text().splitlines())
    return json.loads(file.read_text())["status"], [each["status"] for each in entries if each["kind"] == "status"]


def test_a_signal_while_the_end_is_recorded_ends_the_waiting_and_keeps_the_result(
    make_folder: Callable[[], Path], hanging: str
) -> None:
    folder = make_folder()
    command = CommandProcess(folder, {})
    command.give("train", "tiny.yaml", f"tracking.uri={hanging}", "--json")
    try:
        command.until(lambda: "recording the run in MLflow" in command.told())
        command.process.terminate()
        result = command.result()
    finally:
        command.leave()
    assert (result["status"], result["steps"]) == ("finished", STEPS)
    assert Path(result["checkpoint"]).name == f"step-{STEPS}"
    assert "paceline sync runs/tiny/" in command.told()
    assert recorded_end(folder) == ("finished", ["FINISHED"])


def test_a_changed_config_is_refused_with_the_difference(stopped: Stopped, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped.folder, tmp_path / "copy")
    ended = run_in_process(folder, "train", "tiny.yaml", "optimizer.lr=0.05", "seed=1")
    assert ended.code == 2
    assert "optimizer.lr" in ended.err
    assert "seed" in ended.err
    assert "--fork" in ended.err
    assert not has_traceback(ended.err)


def test_the_same_command_goes_on_to_the_end(stopped: Stopped, finished: tuple[Ended, Path], tmp_path: Path) -> None:
    folder, before = shutil.copytree(stopped.folder, tmp_path / "copy"), stopped.ended.json
    ended = run_in_process(folder, "train", "tiny.yaml", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["run_id"] == before["run_id"]
    assert (ended.json["status"], ended.json["steps"]) == ("finished", STEPS)
    assert ended.json["weights_sha256"] == finished[0].json["weights_sha256"]


def test_a_fork_starts_a_new_run_from_the_checkpoint(
    stopped: Stopped, finished: tuple[Ended, Path], tmp_path: Path
) -> None:
    folder, before = shutil.copytree(stopped.folder, tmp_path / "copy"), stopped.ended.json
    ended = run_in_process(folder, "train", "tiny.yaml", "optimizer.lr=0.05", "--fork", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["run_id"] != before["run_id"]
    assert ended.json["steps"] == STEPS
    assert ended.json["weights_sha256"] != finished[0].json["weights_sha256"]


# The environment


def test_an_mlflow_that_does_not_answer_ends_with_3_and_writes_nothing(make_folder: Callable[[], Path]) -> None:
    folder = make_folder()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = run_in_process(folder, "train", "tiny.yaml", f"tracking.uri={uri}", "--json")
    assert (ended.code, ended.json["exit_code"], ended.json["code"]) == (3, 3, "mlflow-not-answering")
    assert not (folder / "runs").exists()


def test_doctor_prints_its_checks_as_json(tmp_path: Path) -> None:
    ended = run_in_process(tmp_path, "doctor", "--json")
    checks = {check["name"]: check for check in ended.json}
    assert set(checks) >= {"python", "paceline", "torch", "ray", "mlflow", "gpus", "tracking", "storage", "disk"}
    assert checks["torch"]["ok"] is True
    assert ended.code == (3 if any(check["ok"] is False for check in checks.values()) else 0)
