"""What is settled, checked and written down before the first process is started. Without Ray."""

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.cluster import worker
from paceline.cluster.desk import Desk
from paceline.cluster.experiment import Launch, check_this_machine, prepare_launch, require_shared_places, train
from paceline.cluster.identity import RunFolder, claim_run
from paceline.cluster.in_process import assignment, train_in_process
from paceline.cluster.listener import SilentListener
from paceline.cluster.session import connecting_text, on_cluster
from paceline.config.loading import validate
from paceline.errors import ConfigError, EnvironmentFault, RunFailed

CANARY = "canary-S3cr3t"


class Events(SilentListener):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        self.told.append(f"{kind}: {dict(details)}")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose MLflow database needs no process of its own to be made."""
    monkeypatch.chdir(tmp_path)
    for variable in ("MLFLOW_TRACKING_URI", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "mlflow.db").touch()
    return tmp_path


@pytest.fixture
def dead_address() -> Iterator[str]:
    """Host and port where nobody answers."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{closed.getsockname()[1]}"


def config(**changes: Any) -> Any:
    tree = {
        "name": "run",
        "model": {"name": "mlp"},
        "data": {"name": "synthetic", "global_batch_size": 32},
        "scaling": {"num_workers": 0, "use_gpu": False},
    }
    return validate(tree).with_overrides({key.replace("__", "."): value for key, value in changes.items()})


def prepare(run: Any, **options: Any) -> Launch:
    settings: dict[str, Any] = {"resume": "auto", "fork": False, "address": None, "listener": SilentListener()}
    return prepare_launch(run, **{**settings, **options})


def is_free(work: Path) -> bool:
    """Whether the run's name can be claimed."""
    try:
        claim_run(config(), work / "runs").release()
    except EnvironmentFault:
        return False
    return True


# Credentials


@pytest.mark.parametrize(
    "address",
    [
        "http://user:{canary}@{host}",
        "http://{canary}@{host}/ml",
        "http://{host}/?key={canary}",
        "postgresql://user:{canary}@{host}/mlflow",
        "postgresql://{host}/mlflow?user=me&password={canary}",
    ],
)
def test_the_tracking_credentials_go_to_the_recorder_and_nowhere_else(dead_address: str, address: str) -> None:
    uri = address.format(canary=CANARY, host=dead_address)
    launch = prepare(config(tracking__uri=uri, tracking__offline="allow"))
    launch.run.release()
    written = (launch.run.folder.path / "run.json").read_text()
    told_to_workers = assignment(launch).config_json
    assert launch.record.uri.rstrip("/") == uri.rstrip("/")
    for text in (written, told_to_workers, repr(launch.record.params), launch.record.artifacts["config.yaml"]):
        assert CANARY not in text
        assert "***" not in text
        assert dead_address in text
    assert validate(json.loads(told_to_workers)).name == "run"


def test_a_resumed_run_takes_the_credentials_of_its_own_command(dead_address: str) -> None:
    first = prepare(config(tracking__uri=f"http://user:old@{dead_address}", tracking__offline="allow"))
    first.run.release()
    uri = f"http://user:{CANARY}@{dead_address}"
    second = prepare(config(tracking__uri=uri, tracking__offline="allow"))
    second.run.release()
    assert second.run.resumed
    assert second.run.folder == first.run.folder
    assert second.record.uri == uri


def test_the_difference_to_an_unfinished_run_shows_no_secret(work: Path) -> None:
    def claim(secret: str) -> None:
        run = config(model={"path": "own:net", "args": {"api_key": secret, "source": f"http://me:{secret}@host/x"}})
        (claim_run(run, work / "runs").folder.checkpoints / "step-1").mkdir(parents=True)

    claim(CANARY)
    with pytest.raises(ConfigError, match=r"model\.args\.api_key") as caught:
        claim(f"another-{CANARY}")
    assert CANARY not in str(caught.value)
    assert "@host/x" in str(caught.value)


# Places


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("ftp://bucket/runs", "ftp:// is not supported"),
        ("s3://me:secret@bucket/runs", "has credentials in it"),
        ("file:///shared/runs", "write the plain path: /shared/runs"),
    ],
)
def test_an_address_of_no_store_is_refused(work: Path, path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        prepare(config(storage__path=path))
    assert caught.value.problems[0].key == "storage.path"
    assert {item.name for item in work.iterdir()} == {"mlflow.db"}


ELSEWHERE = {"storage__path": "/shared/runs", "tracking__uri": "http://mlflow:5000"}


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"tracking__uri": "sqlite:////shared/mlflow.db"}, []),
        ({"storage__path": "s3://bucket/runs"}, []),
        ({"storage__path": "~/runs"}, []),
        ({"storage__path": None, "tracking__uri": None}, ["storage.path", "tracking.uri"]),
        ({"storage__path": "runs"}, ["storage.path"]),
        ({"storage__path": "./runs", "tracking__uri": "sqlite:///mlflow.db"}, ["storage.path", "tracking.uri"]),
    ],
)
def test_a_cluster_needs_places_outside_the_working_folder(changes: dict[str, Any], keys: list[str]) -> None:
    run = config(**{**ELSEWHERE, **changes})
    found: list[str] = []
    try:
        require_shared_places(run)
    except ConfigError as error:
        found = [problem.key for problem in error.problems]
    assert found == keys


@pytest.mark.parametrize("in_job", [False, True], ids=["--address", "a submitted job"])
def test_a_relative_place_is_refused_at_launch(monkeypatch: pytest.MonkeyPatch, in_job: bool) -> None:
    if in_job:
        monkeypatch.setenv("RAY_JOB_ID", "01000000")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    with pytest.raises(ConfigError, match="absolute path") as caught:
        prepare(config(storage__path="runs"), address=None if in_job else "10.0.0.1:6379")
    assert {problem.key for problem in caught.value.problems} == {"storage.path", "tracking.uri"}
    assert "MLFLOW_TRACKING_URI" in str(caught.value)


def test_the_stage_says_where_training_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connecting_text(None) == "starting Ray"
    assert connecting_text("10.0.0.1:6379") == "connecting to the cluster at 10.0.0.1:6379"
    assert not on_cluster(None)
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    assert on_cluster(None)
    assert connecting_text(None) == "connecting to the cluster"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert connecting_text(None) == "connecting to the cluster at 10.0.0.2:6379"


# What is lacking


def test_a_module_that_is_not_there_is_found_in_a_config_made_in_python() -> None:
    run = config(model={"path": "no_such_module:net"}, task={"path": "no_such_package.tasks:Own"})
    with pytest.raises(ConfigError) as caught:
        prepare(run)
    assert [problem.key for problem in caught.value.problems] == ["task.path", "model.path"]


def test_in_this_process_torch_says_how_many_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(EnvironmentFault, match="asks for 1 GPUs, this machine has 0"):
        check_this_machine(config(scaling__use_gpu=True))
    with pytest.raises(EnvironmentFault, match="16-mixed needs GPUs"):
        check_this_machine(config(trainer__precision="16-mixed", scaling__use_gpu="auto"))
    check_this_machine(config(scaling__use_gpu="auto"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_this_machine(config(scaling__use_gpu=True))


def test_in_this_process_a_gpu_that_torch_does_not_see_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def run_here(assignment: Any, device: torch.device, reporter: Any) -> dict[str, Any]:
        devices.append(device.type)
        return {"status": "finished"}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(worker, "run_here", run_here)
    monkeypatch.setattr(Desk, "ship", lambda self: None)
    monkeypatch.setattr(Desk, "close", lambda self, *arguments: {})
    launch = prepare(config(scaling__use_gpu="auto"))
    train_in_process(launch)
    launch.run.release()
    assert devices == ["cpu"]


def no_space(*arguments: Any, **named: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_the_name_is_free_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", no_space)
        with pytest.raises(EnvironmentFault, match=r"runs/run.*No space left"):
            prepare(config())
    assert is_free(work)


def test_trouble_after_the_claim_is_told_and_the_name_is_free_again(work: Path) -> None:
    first = prepare(config())
    first.run.release()
    (first.run.folder.tracking / "outcome.json").mkdir(parents=True)
    with pytest.raises(EnvironmentFault, match=first.run.folder.run_id) as caught:
        prepare(config())
    assert caught.value.exit_code == 3
    assert is_free(work)


def test_a_record_that_cannot_be_opened_is_told_and_the_name_is_free_again(work: Path) -> None:
    first = prepare(config())
    first.run.release()
    (first.run.folder.tracking / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(EnvironmentFault, match=rf"{first.run.folder.run_id}/tracking is not writable"):
        train(config())
    assert is_free(work)


def test_a_disk_that_is_full_at_the_end_does_not_lose_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    launch = prepare(config(), listener=events)
    launch.run.release()
    monkeypatch.setattr(RunFolder, "write", no_space)
    launch.note_ending({"status": "finished"})
    assert "No space left" in events.told[0]


# What the user's code does instead of returning


def status_of(work: Path) -> str:
    (file,) = (work / "runs").rglob("run.json")
    return str(json.loads(file.read_text())["status"])


def quietly(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Keep MLflow out of it; returns what it would have been told at the end."""
    closed: list[tuple[Any, ...]] = []

    def close(self: Desk, *arguments: Any) -> dict[str, Any]:
        closed.append(arguments)
        return {"error": "", "url": "", "run_id": ""}

    monkeypatch.setattr(Desk, "ship", lambda self: None)
    monkeypatch.setattr(Desk, "close", close)
    return closed


def exiting() -> Any:
    sys.exit()


def interrupting() -> Any:
    raise KeyboardInterrupt


def frozen() -> torch.nn.Module:
    return torch.nn.Linear(2, 2).requires_grad_(False)


def test_code_that_ends_the_program_is_a_failed_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = quietly(monkeypatch)
    with pytest.raises(RunFailed, match=r"rank 0: SystemExit: the code ended the program \(status 0\)") as caught:
        train(config(), model=exiting)
    assert "in exiting" in caught.value.traceback_text
    assert status_of(work) == "failed"
    assert closed[0][0] == "FAILED"


def test_an_interrupt_while_the_model_is_built_leaves_the_run_interrupted(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quietly(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(config(), model=interrupting)
    assert status_of(work) == "interrupted"
    assert is_free(work)


def test_what_paceline_found_out_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    quietly(monkeypatch)
    with pytest.raises(RunFailed, match=r"^rank 0: model\.path .*test_launch:frozen: the model has no tr") as caught:
        train(config(), model=frozen)
    assert caught.value.traceback_text == ""


def test_the_end_names_the_command_that_sends_the_rest(dead_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.cluster.experiment.OFFLINE_CLOSE_SECONDS", 0.1)
    listener = Events()
    offline = config(tracking__uri=f"http://{dead_address}", tracking__offline="allow", trainer__max_steps=2)
    small = offline.with_overrides({"model.in_features": 8, "data.shape": [8], "data.num_samples": 64})
    result = train(small, listener=listener)
    command = f"`paceline sync runs/run/{result.run_id}` sends the rest"
    assert [told for told in listener.told if command in told]
