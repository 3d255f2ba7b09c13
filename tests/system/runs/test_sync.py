"""`paceline sync`: what runs have left unsent is sent, what they have left open is closed, and twice is once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as command
from paceline.cluster.run_folder import RunFolder
from paceline.engine.unrecorded import as_file
from paceline.errors import EnvironmentFault
from paceline.runs import sync as syncing
from paceline.runs.sync import sync_folder
from paceline.storage.in_progress import nobody_works_on
from paceline.tracking import metrics, mlflow_connection
from paceline.tracking.costs import COST_FILE, RUN_PARTS, SWEEP_PARTS, Ledger
from paceline.tracking.run_recorder import has_ended
from paceline.tracking.upload_cursor import UploadReport
from support.golden import Golden
from support.runs.records import (
    NEWER,
    OLDER,
    STEPS,
    contents,
    cost_of,
    files,
    killed_run,
    killed_sweep,
    mlflow_runs,
    record,
    run_folder,
    states,
    steps_of,
    taken,
    uri_of,
    without_sent,
    write_ledger,
)
from support.tracking.recording import DEAD

LEDGER = Ledger("core", 100.0, {**dict.fromkeys(RUN_PARTS, 0.0), "training": 90.0}, 50.0, 36.0)


def test_a_killed_run_is_sent_with_its_cost_and_closed_and_twice_changes_nothing(
    storage: Path, database: Path, golden: Golden
) -> None:
    folder = killed_run(storage, uri_of(database))
    write_ledger(folder, LEDGER)
    RunFolder(folder).write(warnings=["the machine is busy [machine-busy]", "not all was sent [unsent]"])
    report = sync_folder(storage)
    (found,) = report.records
    assert (found.folder, found.state, found.left, found.reason) == (str(folder), "complete", 0, "")
    assert found.sent >= 7  # five points, the note and the status
    (run,) = mlflow_runs(uri_of(database)).values()
    assert run.info.status == "KILLED"
    assert steps_of(uri_of(database), run) == STEPS
    golden(run.data.tags[metrics.STATUS_REASON])
    assert cost_of(run) == {"cost/core_seconds": 100.0, "cost/price": 1.0, "cost/joules": 50.0}
    assert "| training | 90.0 | 90% | 0.9 |" in run.data.tags[metrics.NOTE]
    assert r"\[machine-busy\]" in run.data.tags[metrics.NOTE]
    assert "unsent" not in run.data.tags[metrics.NOTE]
    history = mlflow_connection.connect(uri_of(database)).get_metric_history(run.info.run_id, "cost/price")
    assert [each.step for each in history] == [5]
    assert json.loads((folder / "tracking" / "artifacts" / COST_FILE).read_bytes()) == LEDGER.to_json()
    before = contents(database, storage)
    assert sync_folder(storage) == without_sent(report)
    assert contents(database, storage) == before


@pytest.mark.parametrize(
    ("status", "outcome", "ending"),
    [
        ("finished", None, "FINISHED"),
        ("interrupted", None, "KILLED"),
        ("failed", {"status": "failed", "failure": {"reason": "rank 1 died"}}, "FAILED"),
        ("failed", None, "FAILED"),
    ],
)
def test_a_run_that_did_not_live_to_close_its_record_gets_its_true_status(
    storage: Path, database: Path, status: str, outcome: Any, ending: str
) -> None:
    folder = killed_run(storage, uri_of(database), status=status)
    if outcome is not None:
        (folder / "tracking" / "outcome.json").write_text(json.dumps(outcome))
    assert sync_folder(folder).is_complete
    (run,) = mlflow_runs(uri_of(database)).values()
    reason = run.data.tags.get(metrics.STATUS_REASON)
    assert (run.info.status, bool(reason)) == (ending, ending != "FINISHED")
    assert outcome is None or reason == "rank 1 died"


def test_a_killed_sweep_has_its_cost_and_its_trials_get_their_true_status(storage: Path, database: Path) -> None:
    folder = killed_sweep(storage, uri_of(database))
    parts = {**dict.fromkeys(SWEEP_PARTS, 0.0), "unfinished": 60.0, "startup": 20.0}
    write_ledger(folder, Ledger("GPU", 80.0, parts, kinds=SWEEP_PARTS))
    assert sync_folder(folder).is_complete
    runs = mlflow_runs(uri_of(database))
    told = {key: (run.info.status, run.data.tags.get(metrics.TRIAL_STATE)) for key, run in runs.items()}
    assert told == {
        NEWER: ("KILLED", None),
        f"{NEWER}/0000": ("FINISHED", "finished"),
        f"{NEWER}/0001": ("FAILED", "failed"),
        f"{NEWER}/0002": ("KILLED", "pruned"),
        f"{NEWER}/0003": ("KILLED", None),
        f"{NEWER}/0004": ("KILLED", None),
    }
    assert runs[f"{NEWER}/0002"].data.tags[metrics.STATUS_REASON] == "it was pruned"
    parents = {run.data.tags.get(metrics.PARENT_RUN) for key, run in runs.items() if key != NEWER}
    assert parents == {runs[NEWER].info.run_id}
    assert [steps_of(uri_of(database), run) for run in runs.values()] == [STEPS] * 6
    note = runs[NEWER].data.tags[metrics.NOTE]
    assert {key: cost_of(run) for key, run in runs.items() if cost_of(run)} == {NEWER: {"cost/gpu_seconds": 80.0}}
    assert "| 60.0 | 75% |" in note
    assert "optimizer.lr=0.1" in note
    assert runs[NEWER].data.tags[metrics.STATUS_REASON] in note
    before = contents(database, storage)
    assert sync_folder(storage).to_json()["sent"] == 0
    assert contents(database, storage) == before


def test_a_trial_that_is_named_alone_brings_its_sweep(storage: Path, database: Path) -> None:
    folder = killed_sweep(storage, uri_of(database))
    assert states(sync_folder(folder / "trials" / "0001")) == {"0001": "complete", NEWER: "complete"}
    assert set(mlflow_runs(uri_of(database))) == {NEWER, f"{NEWER}/0001"}


# Runs in progress


def test_a_run_in_progress_is_left_alone_and_only_the_newest_of_a_name_can_be_resumed(
    storage: Path, database: Path, golden: Golden
) -> None:
    killed_run(storage, uri_of(database), OLDER)
    folder = killed_run(storage, uri_of(database), NEWER)
    with nobody_works_on(storage / "mnist") as nobody:  # as a command does that trains
        assert nobody
        report = sync_folder(storage)
    assert states(report) == {OLDER: "complete", NEWER: "in progress"}
    assert report.is_complete
    assert not has_ended(folder / "tracking")
    assert set(mlflow_runs(uri_of(database))) == {OLDER}
    assert sync_folder(storage).is_complete
    reasons = {key: run.data.tags[metrics.STATUS_REASON] for key, run in mlflow_runs(uri_of(database)).items()}
    assert reasons[NEWER].startswith(reasons[OLDER])
    assert reasons[NEWER] != reasons[OLDER]
    golden(reasons[OLDER])


def test_nothing_begins_while_a_run_is_sent(storage: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_run(storage, uri_of(database))
    send, free = syncing.sync, list[bool]()

    def looks(*given: Any) -> Any:
        with nobody_works_on(storage / "mnist") as nobody:
            free.append(nobody)
        return send(*given)

    monkeypatch.setattr(syncing, "sync", looks)
    assert sync_folder(storage).is_complete
    assert free == [False]
    with nobody_works_on(storage / "mnist") as nobody:
        assert nobody


# Other stores


def test_a_lost_database_and_another_store_get_everything(
    storage: Path, database: Path, prepared_database: Path
) -> None:
    killed_sweep(storage, uri_of(database))
    sync_folder(storage)
    written = {name: data for name, data in files(storage).items() if name.endswith("record.json")}
    moved = database.with_name("moved.db")
    for fresh, uri in ((database, None), (moved, uri_of(moved))):
        fresh.unlink(missing_ok=True)
        shutil.copy(prepared_database, fresh)
        assert sync_folder(storage, uri).is_complete
        runs = mlflow_runs(uri_of(fresh))
        assert [steps_of(uri_of(fresh), run) for run in runs.values()] == [STEPS] * 6
        assert runs[f"{NEWER}/0001"].info.status == "FAILED"
    assert {name: data for name, data in files(storage).items() if name.endswith("record.json")} == written


def test_a_run_that_was_deleted_in_mlflow_is_sent_again(storage: Path, database: Path) -> None:
    killed_run(storage, uri_of(database))
    (first,) = sync_folder(storage).records
    mlflow_connection.connect(uri_of(database)).delete_run(str(first.run_id))
    (second,) = sync_folder(storage).records
    assert second.state == "complete"
    assert second.run_id != first.run_id
    (run,) = mlflow_runs(uri_of(database)).values()
    assert (run.info.run_id, run.info.status) == (second.run_id, "KILLED")
    assert steps_of(uri_of(database), run) == STEPS


# Metrics that only a checkpoint has


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "left open"])
def test_metrics_that_only_the_newest_checkpoint_has_are_recorded(
    storage: Path, database: Path, is_closed: bool
) -> None:
    """The recording process was away from before the last checkpoint until the worker had ended."""
    folder = run_folder(storage, status="finished")
    recorder = record(folder.tracking, uri_of(database))
    if is_closed:
        recorder.close("FINISHED")
    recorder.abandon()
    kept = [[point.to_json()] for point in taken(9)]
    for step, last in ((3, 6), (9, 9)):
        place = folder.checkpoints / f"step-{step}"
        place.mkdir(parents=True)
        (place / "unrecorded.json").write_bytes(as_file(NEWER, kept[:last]))
    for _ in range(2):
        (found,) = sync_folder(storage).records
        assert (found.state, found.reason) == ("complete", "")
        (run,) = mlflow_runs(uri_of(database)).values()
        assert run.info.status == "FINISHED"
        assert steps_of(uri_of(database), run) == list(range(1, 10))
    assert found.sent == 0


def test_those_of_another_run_are_ignored_and_a_damaged_file_is_named(storage: Path, database: Path) -> None:
    folder = RunFolder(killed_run(storage, uri_of(database), status="finished"))
    place = folder.checkpoints / "step-9"
    place.mkdir(parents=True)
    (place / "unrecorded.json").write_bytes(as_file(OLDER, [[point.to_json()] for point in taken(9)]))
    assert sync_folder(storage).is_complete
    (run,) = mlflow_runs(uri_of(database)).values()
    assert steps_of(uri_of(database), run) == STEPS
    (place / "unrecorded.json").write_text("{broken")
    (found,) = sync_folder(storage).records
    assert (found.state, found.left, found.reason.count("unrecorded.json")) == ("left", 0, 1)


@pytest.mark.parametrize("name", ["ray", "checkpoints"])
def test_a_run_may_have_any_name_and_folders_without_records_are_skipped(
    storage: Path, database: Path, name: str
) -> None:
    for place in (storage / name / NEWER, storage / "other" / NEWER / name / "deep"):
        record(place / "tracking", uri_of(database), run_id=str(place)).abandon()
    RunFolder(storage / name / NEWER).write(status="finished", config={"name": name})
    RunFolder(storage / "other" / NEWER).write(status="finished", config={"name": "other"})
    assert [each.folder for each in sync_folder(storage).records] == [str(storage / name / NEWER)]


# What is left


def test_a_store_that_does_not_answer_is_reported_in_time_and_changes_nothing(
    storage: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    folder = killed_run(storage, DEAD)
    kept = files(storage)
    assert command(["sync", str(storage), "--uri", DEAD.replace("://", "://me:canary@")]) == 3
    out, err = capsys.readouterr()
    assert str(folder) in out
    assert files(storage) == kept
    golden(err)


def test_the_command_answers_1_when_something_is_left(
    storage: Path, database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(storage.parent)
    killed_run(storage, uri_of(database), OLDER)
    killed_run(storage, uri_of(database), NEWER)
    (storage / "mnist" / OLDER / "tracking" / "record.json").write_text("{broken")
    assert command(["sync"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:3]] == ["left", "complete"]
    (run,) = mlflow_runs(uri_of(database)).values()
    page = f"http://127.0.0.1:5000/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    assert any(line.startswith(f"runs/mnist/{NEWER}") and page in line for line in lines)
    assert command(["sync", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["sent"], told["left"], told["in_progress"]) == (0, 1, 0)


def test_trials_wait_for_their_sweep(storage: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "PATIENCE_SECONDS", 1.0)
    folder = killed_sweep(storage, uri_of(database))
    client = mlflow_connection.connect(uri_of(database))
    client.delete_experiment(client.create_experiment("mnist"))
    report = sync_folder(folder)
    assert set(states(report).values()) == {"left"}
    reasons = {Path(each.folder).name: each.reason for each in report.records}
    assert reasons[NEWER] != reasons["0000"]


def test_a_folder_of_any_record_is_accepted_and_one_without_is_an_error(tmp_path: Path, database: Path) -> None:
    for name, code in ((".", "no-record"), ("typo", "no-folder")):
        with pytest.raises(EnvironmentFault) as caught:
            sync_folder(tmp_path / name)
        assert caught.value.code == code
    record(tmp_path / "own" / "tracking", uri_of(database)).abandon()
    assert states(sync_folder(tmp_path)) == {"own": "complete"}


# Output


def test_the_credentials_of_an_address_are_those_of_the_environment(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-S3cr3t"
    killed_run(storage, f"http://me:{canary}@host:5000")
    used: list[str] = []

    def send(folder: Path, uri: str, patience: float) -> Any:
        used.append(uri)
        return UploadReport(None, None, "id", 0, None)

    monkeypatch.setattr(syncing, "sync", send)
    monkeypatch.setattr(syncing, "probe", lambda uri: None)
    for variable in ("", f"http://me:{canary}@elsewhere:5000", f"http://me:{canary}@host:5000/"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
        sync_folder(storage)
    sync_folder(storage, "http://given")
    assert used == ["http://host:5000", "http://host:5000", f"http://me:{canary}@host:5000", "http://given"]
