"""The command line as a user meets it: exit codes, and what goes to stdout and to stderr. Without Ray."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
WAIT_SECONDS = 240.0


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON value on one line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Command:
    """The command line, running in a folder; its output goes to files there, so that it can be looked at meanwhile."""

    count = 0

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        Command.count += 1
        self.files = [folder / f".{Command.count}.{stream}" for stream in ("out", "err")]
        self.start = time.monotonic()
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "RAY_"))}
        with self.files[0].open("w") as out, self.files[1].open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "paceline.cli", *arguments],
                cwd=folder,
                env={**clean, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def wait(self) -> Ended:
        """Wait for the end; one that does not come is an error, and leaves no process."""
        try:
            code = self.process.wait(WAIT_SECONDS)
        finally:
            self.stop()
        return Ended(code, self.files[0].read_text(), self.files[1].read_text(), time.monotonic() - self.start)

    def stop(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.wait()

    def wait_for(self, text: str) -> None:
        """Wait until a text stands on stderr."""
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.files[1].read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"{text!r} did not come: {self.files[1].read_text()}")
            time.sleep(0.05)


def run(folder: Path, *arguments: str, **environment: str) -> Ended:
    """Run a command to its end."""
    return Command(folder, *arguments, **environment).wait()


def run_both(first: Command, second: Command) -> tuple[Ended, Ended]:
    """Wait for two commands that run side by side."""
    try:
        return first.wait(), second.wait()
    finally:
        second.stop()


def has_traceback(text: str) -> bool:
    """Whether a traceback of Python's stands in a text."""
    return "Traceback (most recent call last)" in text


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder for what ends before MLflow is needed."""
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "own_net.py").write_text(OWN_NET)
    return tmp_path


# Runs. Two go on at a time, since most of a run's time is the import of torch and MLflow.


class Pair(NamedTuple):
    """Two commands that ran side by side."""

    first: Ended
    second: Ended
    folder: Path


@pytest.fixture(scope="module")
def finished_and_failed(make_folder: Callable[[], Path]) -> Pair:
    """A run with `--resume never` beside an unfinished one of its name, and a run that ends in the user's exception."""
    good, bad = make_folder(), make_folder()
    unfinished = good / "runs" / "tiny" / "20200101-000000-aaaaaa"
    unfinished.mkdir(parents=True)
    (unfinished / "run.json").write_text(json.dumps({"status": "running", "config": {"name": "tiny"}}))
    running = Command(good, "train", "tiny.yaml", "--json", "--resume", "never")
    failing = Command(bad, "train", "tiny.yaml", "--json", MISTAKE="1")
    return Pair(*run_both(running, failing), good)


def test_a_finished_run_prints_one_json_object_and_plain_lines(finished_and_failed: Pair) -> None:
    ended = finished_and_failed.first
    assert ended.code == 0, ended.err
    result = ended.json
    assert result["status"] == "finished"
    assert result["steps"] == STEPS
    assert set(result["metrics"]) >= {"train/loss", "val/loss", "val/accuracy", "lr"}
    assert result["samples_per_second"] > 0
    assert result["peak_memory_bytes"] > 1 << 20
    assert 0 < result["wall_seconds"] < ended.seconds
    assert Path(result["checkpoint"]).name == f"step-{STEPS}"
    assert (Path(result["checkpoint"]) / "MANIFEST.json").is_file()
    assert len(bytes.fromhex(result["weights_sha256"])) == 32
    assert "batch: 16 micro x 1 accumulation x 1 worker = 16 global" in ended.err
    assert "the user's own words" in ended.err
    assert f"saved step {STEPS}" in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_resume_never_starts_anew_and_leaves_the_unfinished_run(finished_and_failed: Pair) -> None:
    runs = finished_and_failed.folder / "runs" / "tiny"
    assert finished_and_failed.first.json["run_id"] != "20200101-000000-aaaaaa"
    assert "going on from step" not in finished_and_failed.first.err
    assert json.loads((runs / "20200101-000000-aaaaaa" / "run.json").read_text())["status"] == "running"


def test_an_exception_of_the_user_ends_with_1_its_text_and_its_traceback(finished_and_failed: Pair) -> None:
    ended = finished_and_failed.second
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
    running = Command(folder, "train", "tiny.yaml", "--json", PAUSE_SECONDS="0.2")
    running.wait_for("val/accuracy")  # on the line of a step in mid-training
    second = run(folder, "train", "tiny.yaml")
    running.process.send_signal(signal.SIGINT)
    return Stopped(running.wait(), second, folder)


def test_a_second_run_of_the_same_name_is_refused(stopped: Stopped) -> None:
    assert stopped.second.code == 3
    assert "'tiny' is going on" in stopped.second.err
    assert not has_traceback(stopped.second.err)


def test_ctrl_c_saves_and_exits_with_130(stopped: Stopped) -> None:
    assert stopped.ended.code == 130, stopped.ended.err
    result = stopped.ended.json
    assert result["status"] == "interrupted"
    assert 4 <= result["steps"] < STEPS
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"
    assert not has_traceback(stopped.ended.err)


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
    folders = make_folder(), make_folder()
    commands = [Command(each, "train", "tiny.yaml", f"tracking.uri={hanging}", "--json") for each in folders]
    try:
        for command, number in zip(commands, (signal.SIGINT, signal.SIGTERM), strict=True):
            command.wait_for("recording the run in MLflow")
            command.process.send_signal(number)
        since = time.monotonic()
        both = [command.wait() for command in commands]
        assert time.monotonic() - since < 30, "the end would wait for 60 s"
    finally:
        for command in commands:
            command.stop()
    for folder, ended in zip(folders, both, strict=True):
        assert ended.code == 0, ended.err
        assert (ended.json["status"], ended.json["steps"]) == ("finished", STEPS)
        assert Path(ended.json["checkpoint"]).name == f"step-{STEPS}"
        assert "MLflow does not have everything: the end was not waited for; `paceline sync runs/tiny/" in ended.err
        assert "for now" not in ended.err, "it was ended on purpose"
        assert recorded_end(folder) == ("finished", ["FINISHED"])


def test_a_changed_config_is_refused_with_the_difference(stopped: Stopped, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped.folder, tmp_path / "copy")
    ended = run(folder, "train", "tiny.yaml", "optimizer.lr=0.05", "seed=1")
    assert ended.code == 2
    assert "optimizer.lr: " in ended.err
    assert "0.1" in ended.err
    assert "0.05" in ended.err
    assert "seed: " in ended.err
    assert "--fork" in ended.err
    assert not has_traceback(ended.err)


@pytest.fixture(scope="module")
def resumed_and_forked(stopped: Stopped, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two ways to go on with the interrupted run, each in a copy of the folder."""
    first, second = (shutil.copytree(stopped.folder, tmp_path_factory.mktemp("copy") / "work") for _ in range(2))
    resuming = Command(first, "train", "tiny.yaml", "--json")
    forking = Command(second, "train", "tiny.yaml", "optimizer.lr=0.05", "--fork", "--json")
    return Pair(*run_both(resuming, forking), stopped.folder)


def test_the_same_command_goes_on_to_the_end(
    stopped: Stopped, resumed_and_forked: Pair, finished_and_failed: Pair
) -> None:
    ended, before = resumed_and_forked.first, stopped.ended.json
    assert ended.code == 0, ended.err
    assert f"going on from step {before['steps']}" in ended.err
    assert ended.json["run_id"] == before["run_id"]
    assert (ended.json["status"], ended.json["steps"]) == ("finished", STEPS)
    assert ended.json["weights_sha256"] == finished_and_failed.first.json["weights_sha256"]


def test_a_fork_starts_a_new_run_from_the_checkpoint(stopped: Stopped, resumed_and_forked: Pair) -> None:
    ended, before = resumed_and_forked.second, stopped.ended.json
    assert ended.code == 0, ended.err
    assert f"going on from step {before['steps']}" in ended.err
    assert ended.json["run_id"] != before["run_id"]
    assert ended.json["steps"] == STEPS
    assert ended.json["weights_sha256"] != resumed_and_forked.first.json["weights_sha256"]


# What is refused before anything starts


def test_a_bad_file_ends_with_2_and_every_problem(folder: Path) -> None:
    bad = CONFIG.replace("epochs: 25", "epoch: 25").replace("synthetic", "sintetic").replace("use_gpu: false", "gpu: 1")
    (folder / "bad.yaml").write_text(bad)
    ended = run(folder, "train", "bad.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 3
    assert "bad.yaml:3:8: [unknown-component] data.name" in ended.err
    assert "bad.yaml:4:11: [unknown-key] trainer.epoch" in ended.err
    assert "bad.yaml:5:27: [unknown-key] scaling.gpu" in ended.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("argument", "words"),
    [("--resum-never", "--resum-never"), ("trainer.epochs", "write key.path=value")],
    ids=["an unknown flag", "an override without ="],
)
def test_a_wrong_command_line_ends_with_2(folder: Path, argument: str, words: str) -> None:
    ended = run(folder, "train", "tiny.yaml", argument)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert not has_traceback(ended.err)


def test_overrides_may_follow_the_flags(folder: Path) -> None:
    arguments = ("tiny.yaml", "seed=1", "--dry-run", "trainer.epochs=2", "--json", "optimizer.lr=0.5")
    config = run(folder, "train", *arguments).json["config"]
    assert (config["seed"], config["trainer"]["epochs"], config["optimizer"]["lr"]) == (1, 2, 0.5)


def test_an_mlflow_that_does_not_answer_ends_with_3_within_seconds(folder: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = run(folder, "train", "tiny.yaml", f"tracking.uri={address}")
    assert (ended.code, ended.out) == (3, "")
    assert f"MLflow does not answer at {address}" in ended.err
    assert "tracking.offline=allow" in ended.err
    assert ended.seconds < 5 + 5  # five to give up, five to start on a busy machine
    assert not has_traceback(ended.err)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("option", ["--json", "--dry-run"])
def test_an_address_that_is_no_store_ends_with_2(folder: Path, option: str) -> None:
    ended = run(folder, "train", "tiny.yaml", "storage.path=ftp://bucket/runs", option)
    assert (ended.code, ended.out) == (2, "")
    assert "storage.path: ftp:// is not supported" in ended.err
    assert not has_traceback(ended.err)
    assert not (folder / "ftp:").exists()


def test_no_secret_of_the_tracking_address_is_printed(folder: Path) -> None:
    address = "tracking.uri=http://user:canary@host:5000/?token=canary"
    plain = run(folder, "train", "tiny.yaml", address, "--dry-run")
    as_json = run(folder, "train", "tiny.yaml", address, "--dry-run", "--json")
    mistyped = run(folder, "train", "tiny.yaml", address.replace("uri", "urI"))
    assert (plain.code, as_json.code, mistyped.code) == (0, 0, 2)
    assert "uri: http://host:5000/\n" in plain.out
    assert as_json.json["config"]["tracking"]["uri"] == "http://host:5000/"
    assert "[unknown-key] tracking.urI" in mistyped.err
    assert "canary" not in "".join(ended.out + ended.err for ended in (plain, as_json, mistyped))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["scaling.num_workers=4096", "data.global_batch_size=4096"], "4096 CPU cores"),
        (["scaling.use_gpu=true", "scaling.num_workers=64", "data.global_batch_size=64"], "64 GPUs"),
    ],
    ids=["workers", "GPUs"],
)
def test_more_than_the_machine_has_ends_with_3(folder: Path, overrides: list[str], words: str) -> None:
    ended = run(folder, "train", "tiny.yaml", *overrides)
    assert (ended.code, ended.out) == (3, "")
    assert f"asks for {words}" in ended.err
    assert not has_traceback(ended.err)
    assert "starting Ray" not in ended.err
    assert ended.seconds < 30, "it takes one or two where nothing else runs"


# The other commands


def test_doctor_prints_its_checks_as_json(folder: Path) -> None:
    ended = run(folder, "doctor", "--json")
    checks = {check["name"]: check for check in ended.json}
    assert set(checks) >= {"python", "paceline", "torch", "ray", "mlflow", "gpus", "tracking", "storage", "disk"}
    assert checks["torch"]["ok"] is True
    assert ended.code == (3 if any(check["ok"] is False for check in checks.values()) else 0)


def test_schema_prints_a_schema_of_every_section(folder: Path) -> None:
    ended = run(folder, "schema")
    schema = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert set(schema["required"]) == {"name", "model", "data"}
    assert set(schema["properties"]) >= {"task", "optimizer", "lr_scheduler", "trainer", "scaling", "storage"}


@pytest.mark.parametrize("arguments", [(), ("no-such-command",)])
def test_no_command_ends_with_2_and_names_them(folder: Path, arguments: tuple[str, ...]) -> None:
    ended = run(folder, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "COMMAND" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny.yaml", "--dry-run", "trainer"), "paceline train: error: trainer: write key.path=value"),
        (("tiny.yaml", "--epochs", "3"), "--epochs 3 (fields are set as key.path=value, such as trainer.epochs=3)"),
        (("",), "argument CONFIG: is empty"),
        ((), "arguments are required: CONFIG\n"),
        (("tiny.yaml", "--wait", "long"), "argument --wait: 'long' is no number of seconds, such as 600"),
        (("tiny.yaml", "--wait=-1"), "argument --wait: '-1' is no number of seconds"),
    ],
)
def test_mistakes_in_the_arguments_of_train_are_told(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.cli import parse

    with pytest.raises(SystemExit) as ended:
        parse(["train", *arguments])

    assert ended.value.code == 2
    assert words in capsys.readouterr().err
