"""What is settled, checked and written down before the first process is started, and how a run in this process ends."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.cluster import train_worker
from paceline.cluster.preflight import check_this_machine, require_shared_places
from paceline.cluster.run_coordinator import RunCoordinator
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.train import prepare_launch, train
from paceline.cluster.train_in_process import train_in_process
from paceline.cluster.train_launch import TrainLaunch, worker_spec
from paceline.cluster.unfinished_runs import ClaimedRun, claim_run
from paceline.cluster.user_code import with_objects as with_all_objects
from paceline.config.experiment import validate
from paceline.errors import ConfigError, EnvironmentFault, RunFailed
from paceline.runs.reopening import load_run
from paceline.storage.store_faults import LeaseLost
from paceline.tasks._classification import Classification
from paceline.tracking import metrics
from support.cluster.coordinators import Events, no_space, tags_of
from support.cluster.local_runs import local_config as config
from support.cluster.local_runs import small_config
from support.configs import problems_of
from support.golden import Golden
from support.refusals import refused

CANARY = "canary-S3cr3t"
SERVER = "127.0.0.1:9"


pytestmark = pytest.mark.usefixtures("work")


@pytest.fixture(autouse=True)
def _no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(uri: str) -> None:
        if uri.startswith(("http", "postgresql")):
            raise EnvironmentFault("MLflow does not answer", "mlflow-unreachable")

    monkeypatch.setattr("paceline.cluster.train.probe", probe)


def prepare(run: Any, **options: Any) -> TrainLaunch:
    settings: dict[str, Any] = {"intent": "continue", "address": None, "listener": Events()}
    return prepare_launch(run, **{**settings, **options})


def released(run: Any, **options: Any) -> TrainLaunch:
    launch = prepare(run, **options)
    launch.run.release()
    return launch


def is_free(work: Path) -> bool:
    """Whether the name of the run can be claimed."""
    try:
        claim_run(config(), work / "runs").release()
    except EnvironmentFault:
        return False
    return True


# Credentials


@pytest.mark.parametrize(
    "address",
    [
        "http://user:{canary}@{host}/ml",
        "http://{host}/?key={canary}",
        "postgresql://{host}/mlflow?user=me&password={canary}",
    ],
)
def test_the_tracking_credentials_go_to_the_recorder_and_nowhere_else(address: str) -> None:
    uri = address.format(canary=CANARY, host=SERVER)
    launch = released(config(tracking__uri=uri, tracking__offline="allow"))
    written = (launch.run.folder.path / "run.json").read_text()
    sent_to_workers = worker_spec(launch).config_json
    assert launch.record.uri.rstrip("/") == uri.rstrip("/")
    for text in (written, sent_to_workers, repr(launch.record.params), launch.record.artifacts["config.yaml"]):
        assert CANARY not in text
        assert "***" not in text
        assert SERVER in text
    assert validate(json.loads(sent_to_workers)).name == "run"
    assert [text.split()[-1] for text in launch.listener.warnings] == ["[mlflow-offline]"]


def test_a_resumed_run_takes_the_credentials_of_its_own_command() -> None:
    first = released(config(tracking__uri=f"http://user:old@{SERVER}", tracking__offline="allow"))
    uri = f"http://user:{CANARY}@{SERVER}"
    second = released(config(tracking__uri=uri, tracking__offline="allow"))
    assert second.run.resumed
    assert second.run.folder == first.run.folder
    assert second.record.uri == uri


def test_the_difference_to_an_unfinished_run_shows_no_secret(work: Path) -> None:
    def claim(secret: str) -> None:
        run = config(model={"path": "own:net", "args": {"api_key": secret, "source": f"http://me:{secret}@host/x"}})
        (claim_run(run, work / "runs").folder.checkpoints / "step-1").mkdir(parents=True)

    claim(CANARY)
    refusal = refused(ConfigError, claim, f"another-{CANARY}")
    assert "model.args.api_key" in {problem.key for problem in refusal.problems}
    assert CANARY not in str(refusal)
    assert "@host/x" in str(refusal)


# Places


ELSEWHERE = {"storage__path": "/shared/runs", "tracking__uri": "http://mlflow:5000"}


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"tracking__uri": "sqlite:////shared/mlflow.db"}, []),
        ({"storage__path": "s3://bucket/runs"}, []),
        ({"storage__path": "~/runs"}, []),
        ({"storage__path": None, "tracking__uri": None}, ["storage.path", "tracking.uri"]),
        ({"storage__path": "./runs", "tracking__uri": "sqlite:///mlflow.db"}, ["storage.path", "tracking.uri"]),
    ],
)
def test_a_cluster_needs_places_outside_the_working_folder(changes: dict[str, Any], keys: list[str]) -> None:
    run = config(**{**ELSEWHERE, **changes})
    if not keys:
        require_shared_places(run)
        return
    assert [problem.key for problem in problems_of(require_shared_places, run)] == keys


@pytest.mark.parametrize("in_job", [False, True], ids=["--address", "a submitted job"])
def test_a_relative_place_is_refused_at_launch(monkeypatch: pytest.MonkeyPatch, in_job: bool, golden: Golden) -> None:
    if in_job:
        monkeypatch.setenv("RAY_JOB_ID", "01000000")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    refusal = refused(ConfigError, prepare, config(storage__path="runs"), address=None if in_job else "10.0.0.1:6379")
    assert [(problem.code, problem.key) for problem in refusal.problems] == [
        ("storage", "storage.path"),
        ("tracking-uri", "tracking.uri"),
    ]
    if in_job:
        golden(str(refusal))


# What is lacking


def test_a_missing_module_is_found_in_a_config_made_in_python() -> None:
    run = config(model={"path": "no_such_module:net"}, task={"path": "no_such_package.tasks:Own"})
    assert [problem.key for problem in problems_of(prepare, run)] == ["task.path", "model.path"]


def test_torch_says_how_many_gpus_this_process_has(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    few = refused(EnvironmentFault, check_this_machine, config(scaling__use_gpu=True))
    assert (few.code, few.fields["asked"], few.fields["available"]) == ("too-few-gpus", 1, 0)
    golden(str(few), "GPUs")
    half = config(trainer__precision="16-mixed", scaling__use_gpu="auto")
    precision = refused(EnvironmentFault, check_this_machine, half)
    assert precision.code == "precision-needs-gpu"
    golden(str(precision), "precision")
    check_this_machine(config(scaling__use_gpu="auto"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_this_machine(config(scaling__use_gpu=True))


def test_a_gpu_that_torch_does_not_see_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def run_here(worker_spec: Any, device: torch.device, reporter: Any) -> dict[str, Any]:
        devices.append(device.type)
        return {"status": "finished"}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(train_worker, "run_here", run_here)
    monkeypatch.setattr(RunCoordinator, "close", lambda self, *arguments, **named: {})
    launch = prepare(config(scaling__use_gpu="auto"))
    train_in_process(launch)
    launch.run.release()
    assert devices == ["cpu"]


def test_a_full_disk_is_reported_and_the_name_is_free_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", no_space)
        refusal = refused(EnvironmentFault, prepare, config())
    assert refusal.code == "folder-not-writable"
    assert str(refusal.fields["folder"]).startswith(str(work / "runs"))
    assert is_free(work)


@pytest.mark.parametrize("file", ["outcome.json", "journal.jsonl"])
def test_a_record_that_cannot_be_written_is_reported_and_the_name_is_free_again(work: Path, file: str) -> None:
    first = released(config())
    (first.run.folder.tracking / file).mkdir(parents=True)
    refusal = refused(EnvironmentFault, train, config(), listener=Events())
    assert (refusal.code, refusal.exit_code) == ("folder-not-writable", 3)
    assert first.run.folder.run_id in str(refusal.fields["folder"])
    assert is_free(work)


# How a run in this process ends


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What MLflow would have been told at the end."""
    given: list[tuple[Any, ...]] = []

    def close(self: RunCoordinator, *arguments: Any, **named: Any) -> dict[str, Any]:
        given.append(arguments)
        return {"error": "", "url": "", "run_id": ""}

    monkeypatch.setattr(RunCoordinator, "close", close)
    return given


def status_of(work: Path) -> str:
    (file,) = (work / "runs").rglob("run.json")
    return str(json.loads(file.read_text())["status"])


def exiting() -> Any:
    sys.exit()


def interrupting() -> Any:
    raise KeyboardInterrupt


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def test_code_that_ends_the_program_is_a_failed_run(work: Path, closed: list[tuple[Any, ...]], golden: Golden) -> None:
    refusal = refused(RunFailed, train, config(), model=exiting, listener=Events())
    golden(str(refusal))
    assert "in exiting" in refusal.traceback_text
    assert status_of(work) == "failed"
    assert closed[0][0] == "FAILED"


@pytest.mark.usefixtures("closed")
def test_an_interrupt_while_the_model_is_built_leaves_the_run_interrupted(work: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config(), model=interrupting, listener=Events())
    assert status_of(work) == "interrupted"
    assert is_free(work)


@pytest.mark.usefixtures("closed")
def test_an_error_of_ours_comes_without_a_traceback() -> None:
    refusal = refused(RunFailed, train, config(), model=frozen, listener=Events())
    assert (refusal.traceback_text, refusal.code) == ("", "nothing-to-train")


def test_the_end_names_the_command_that_sends_the_rest(golden: Golden) -> None:
    events = Events()
    offline = small_config(tracking__uri=f"http://{SERVER}", tracking__offline="allow", trainer__max_steps=2)
    result = train(offline, listener=events)
    assert events.warnings == ["mlflow-offline", "unsent"]
    assert [text.split()[-1] for text in result.warnings] == ["[mlflow-offline]", "[unsent]"]
    assert load_run(result.folder).warnings == result.warnings
    golden(str(events.events[-1][1]["message"]).replace(result.run_id, "<id>"))


def test_the_note_lists_the_warnings_but_those_about_the_recording() -> None:
    changes = {"lr_scheduler__warmup_steps": 9, "trainer__max_steps": 2}
    offline = small_config(tracking__uri=f"http://{SERVER}", tracking__offline="allow", **changes)
    result = train(offline, listener=Events())
    codes = [text.split()[-1] for text in result.warnings]
    assert codes == ["[mlflow-offline]", "[warmup-too-long]", "[unsent]"]
    note = tags_of(result.folder / "tracking")[metrics.NOTE]
    assert r"\[warmup-too-long\]" in note
    assert "mlflow-offline" not in note
    assert "unsent" not in note


# Python objects


def build(width: int = 64) -> nn.Module:
    return nn.Linear(8, width)


@pytest.mark.parametrize(
    ("objects", "code", "key"),
    [
        ({"model": nn.Linear(2, 2)}, "not-a-builder", "model"),
        ({"model": 3}, "not-a-builder", "model"),
        ({"task": Classification(nn.Linear(2, 2))}, "not-a-builder", "task"),
        ({"data": TensorDataset(torch.zeros(3, 2))}, "not-two-sets", "data"),
        ({"data": ([1], [2], [3])}, "not-two-sets", "data"),
    ],
    ids=["model", "number", "task", "data set", "three"],
)
def test_an_object_in_place_of_its_builder_is_refused(objects: Any, code: str, key: str) -> None:
    (problem,) = refused(ConfigError, with_objects, config(), **objects).problems
    assert (problem.code, problem.key) == (code, key)


@pytest.mark.parametrize("given", [{"name": "mine"}, "mine.yaml", None])
def test_what_was_not_loaded_is_refused(given: Any) -> None:
    (problem,) = refused(ConfigError, with_objects, given).problems
    assert (problem.code, problem.key) == ("not-a-config", "config")


def with_objects(run: Any, **objects: Any) -> Any:
    return with_all_objects(run, **{"model": None, "data": None, "task": None, **objects})


@pytest.mark.parametrize(
    ("model", "width"), [({"path": "own:build", "args": {"width": 128}}, 128), ({"name": "mlp"}, 64)]
)
def test_a_callable_gets_the_arguments_that_the_config_has_for_it(model: dict[str, Any], width: int) -> None:
    assert with_objects(config(model=model), model=build).model.build().out_features == width


def test_data_given_as_a_pair_take_no_arguments() -> None:
    own = {"path": "own:data", "args": {"samples": 2000}, "global_batch_size": 64}
    changed = with_objects(config(data=own), data=([1, 2], [3]))
    assert changed.data.call() == ([1, 2], [3])
    assert changed.data.global_batch_size == 64


def test_a_run_that_another_machine_has_taken_over_is_not_answered(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[Any] = []
    monkeypatch.setattr(ClaimedRun, "lost", property(lambda run: "it was taken over"))
    run = small_config(tracking__uri=f"http://{SERVER}", tracking__offline="allow", trainer__max_steps=2)
    lost = refused(LeaseLost, train, run, listener=Events(), on_result=answered.append)
    assert (lost.code, answered) == ("lease-lost", [])
    [file] = (work / "runs").glob("*/*/run.json")
    assert json.loads(file.read_text())["status"] == "running"
