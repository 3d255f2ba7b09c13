"""`paceline ui`: MLflow's server on this folder's runs."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event

import psutil
import pytest

from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_database import sqlite_uri
from paceline.tracking.mlflow_server import free_port
from paceline.tracking.run_recorder import RunRecorder
from support.tracking.answering import answering, healthy
from support.tracking.recording import MakeRecord, client_of, until


@contextmanager
def ui_on(uri: str, port: int, *prefix: str) -> Iterator["subprocess.Popen[str]"]:
    """`paceline ui` as a process of its own, of whose server nothing is left in the end."""
    program = f"import sys; from paceline.tracking.mlflow_server import ui; sys.exit(ui({uri!r}, {port}))"
    command = [*prefix, sys.executable, "-u", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
    until(lambda: not processes_with(uri))


def address_of(process: "subprocess.Popen[str]") -> str:
    """The address that is printed once the server answers."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"(http\S+)/#/experiments\?", line):
            return found[1]
    raise AssertionError("the server did not start")


def processes_with(uri: str) -> list[psutil.Process]:
    """Other processes whose environment names the database."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and uri in process.environ().values():
                found.append(process)
    return found


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def test_the_page_shows_the_runs_of_a_folder_with_an_odd_name_and_ctrl_c_ends_all_of_it(
    odd_folder: Path, prepared_database: Path, record: MakeRecord
) -> None:
    shutil.copy(prepared_database, odd_folder / "mlflow.db")
    uri = sqlite_uri(odd_folder / "mlflow.db")
    recorder = RunRecorder(odd_folder / "run", record(uri, artifacts={"config.yaml": "name: shown"}))
    recorder.append([MetricPoint("train/loss", 1.0, 1, 1)])
    report = recorder.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    assert {file.name for file in odd_folder.iterdir()} == {"mlflow.db", "mlruns", "run"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with ui_on(uri, port) as process:
            address = address_of(process)
            assert f":{port}" not in address
            run = json.loads(read(f"{address}/api/2.0/mlflow/runs/get?run_id={report.run_id}"))["run"]
            assert run["info"]["status"] == "FINISHED"
            assert {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}["train/loss"] == 1.0
            listed = json.loads(read(f"{address}/api/2.0/mlflow/artifacts/list?run_id={report.run_id}"))
            assert {file["path"] for file in listed["files"]} == {"config.yaml", "loss_curve.png"}
            artifact = read(f"{address}/get-artifact?run_id={report.run_id}&path=config.yaml")
            assert artifact == b"name: shown"
            client = client_of(address)  # what somebody else logs goes to where the server keeps such things
            other = client.create_run(client.create_experiment("somebody else's"))
            client.log_text(other.info.run_id, "text", "note.txt")
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group gets it
            assert process.wait(60) == 0
    assert {file.name for file in odd_folder.iterdir()} == {"mlflow.db", "mlruns", "mlartifacts", "run"}
    assert [file.name for file in (odd_folder / "mlartifacts").rglob("*") if file.is_file()] == ["note.txt"]


MLFLOW = """
import pathlib, signal, subprocess, sys, time
from support.tracking.answering import answering, healthy

def end(number, frame):
    child.terminate()
    sys.exit(child.wait())

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
signal.signal(signal.SIGTERM, end)
port = int(sys.argv[sys.argv.index("--port") + 1])
pathlib.Path("port-" + str(port)).touch()
while pathlib.Path("wait").exists():
    time.sleep(0.1)
try:
    with answering(healthy, port):
        signal.pause()
except OSError:
    child.terminate()
    child.wait()
"""
"""A server that ends its worker on SIGTERM, as the real one does, which takes half a minute to start."""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that such a server is going to show."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").touch()
    (tmp_path / "mlflow" / "__main__.py").write_text(MLFLOW)
    (tmp_path / "mlflow.db").touch()
    for folder in (Path(__file__).parents[2], tmp_path):
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return tmp_path / "mlflow.db"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_whatever_ends_the_command_ends_the_server_too(database: Path, number: signal.Signals, code: int) -> None:
    with ui_on(f"sqlite:///{database}", free_port(25_200 + os.getpid() % 5_000)) as process:
        address_of(process)
        assert len(processes_with(f"sqlite:///{database}")) == 2
        process.send_signal(number)
        assert process.wait(60) == code


def test_an_interrupt_ends_what_a_script_started_in_the_background(database: Path) -> None:
    """A shell without job control starts such a process with SIGINT ignored."""
    in_background = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    with ui_on(f"sqlite:///{database}", free_port(25_200 + os.getpid() % 5_000), *in_background) as process:
        address_of(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_port_that_is_taken_while_the_server_starts_is_no_trouble(database: Path) -> None:
    """Such as by the same command in another folder, whose runs would be shown in place of these."""
    port, wait = free_port(25_200 + os.getpid() % 5_000), database.parent / "wait"
    wait.touch()
    with ui_on(f"sqlite:///{database}", port) as process:
        until((database.parent / f"port-{port}").exists)
        asked = Event()

        def noted(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
            asked.set()
            return healthy(request)

        with answering(noted, port):
            assert asked.wait(60)  # its answer is not taken for the server's
            wait.unlink()
            assert address_of(process) != f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
