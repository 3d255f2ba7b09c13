"""`paceline sync`: what runs have left unsent is sent, what they have left open is closed, and twice is once."""

import json
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as run_command
from paceline.cluster.identity import RunFolder, nobody_works_on
from paceline.config.loading import validate
from paceline.engine.unrecorded import as_file
from paceline.errors import EnvironmentFault
from paceline.review import progress
from paceline.review import sync as syncing
from paceline.review.sync import Synced, SyncReport, sync_folder
from paceline.sweeps.folder import SweepFolder
from paceline.sweeps.log import SweepLog
from paceline.sweeps.trials import Trial
from paceline.tracking import metrics, remote
from paceline.tracking.costs import COST_FILE, RUN_PARTS, SWEEP_PARTS, Ledger
from paceline.tracking.cursor import ShipReport
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord, sweep_tags, trial_tags
from paceline.tracking.recorder import Recorder, has_ended

GONE = "its process is gone; the same command goes on with it"
OLDER, NEWER = "20260101-000000-aaaaaa", "20260102-000000-bbbbbb"


@pytest.fixture
def dead_uri() -> Iterator[str]:
    """An address where nobody answers."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


def uri_of(database: Path) -> str:
    return f"sqlite:///{database}"


def taken(count: int = 5) -> list[Point]:
    now = int(time.time() * 1000)
    return [Point("train/loss", 1.0 / step, step, now + step) for step in range(1, count + 1)]


def record(tracking: Path, uri: str, **about: Any) -> Recorder:
    """A record as a process leaves it that was killed: opened, five points, and nothing sent."""
    given = {"run_id": tracking.parent.name, "name": "mnist", "uri": uri, "experiment": "mnist", **about}
    recorder = Recorder(tracking, RunRecord(**given))
    recorder.append(taken())
    return recorder


def killed_run(storage: Path, uri: str, run_id: str = NEWER, status: str = "running") -> Path:
    folder = RunFolder(storage / "mnist" / run_id)
    folder.write(status=status, config={"name": "mnist"})
    record(folder.tracking, uri).abandon()
    return folder.path


STATES = {"0000": "finished", "0001": "failed", "0002": "pruned", "0003": "running", "0004": "paused"}


def killed_sweep(storage: Path, uri: str) -> Path:
    """A sweep whose driver was killed: its trials have ended in its journal, but their records are open."""
    folder = SweepFolder(storage / "mnist" / NEWER)
    space = {"space": {"optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}, "metric": "val/accuracy"}
    config = {"name": "mnist", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, "sweep": space}
    folder.write(status="running", config=validate(config).model_dump(mode="json"))
    record(folder.tracking, uri, tags=sweep_tags(NEWER), picture=False).abandon()
    log = SweepLog(folder.path)
    for trial_id, state in STATES.items():
        reason = "" if state in ("finished", "running", "paused") else f"it was {state}"
        values = {"optimizer.lr": 0.1 * (1 + int(trial_id))}
        log.trial(Trial(trial_id, values, state, reason, {"val/accuracy": 0.5}))  # type: ignore[arg-type]
        tags, about = trial_tags(NEWER, trial_id), f"{NEWER}/{trial_id}"
        tracking = folder.trials / trial_id / "tracking"
        record(tracking, uri, run_id=about, parent=NEWER, tags=tags, picture=False).abandon()
    log.close()
    return folder.path


def mlflow_runs(uri: str) -> dict[str, Any]:
    """The runs of the experiment that are not deleted, by Paceline's id."""
    client = remote.connect(uri)
    experiment = client.get_experiment_by_name("mnist")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    found = {run.data.tags[metrics.RUN_ID]: run for run in runs}
    assert len(found) == len(runs), "a run is there twice"
    return found


def steps_of(uri: str, run: Any) -> list[int]:
    return [point.step for point in remote.connect(uri).get_metric_history(run.info.run_id, "train/loss")]


def dump(database: Path) -> list[str]:
    with sqlite3.connect(database) as opened:
        return list(opened.iterdump())


def files(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def states(report: SyncReport) -> dict[str, str]:
    return {Path(each.folder).name: each.state for each in report.records}


def test_a_killed_run_is_sent_and_closed_and_twice_changes_nothing(storage: Path, database: Path) -> None:
    folder = killed_run(storage, uri_of(database))
    report = sync_folder(storage)
    (found,) = report.records
    assert (found.folder, found.state, found.left, found.reason) == (str(folder), "complete", 0, "")
    assert found.sent >= 7  # five points, the note and the status
    (run,) = mlflow_runs(uri_of(database)).values()
    assert (run.info.status, run.data.tags[metrics.STATUS_REASON]) == ("KILLED", GONE)
    assert steps_of(uri_of(database), run) == [1, 2, 3, 4, 5]

    before, kept = dump(database), files(storage)
    again = sync_folder(storage)
    assert again == SyncReport((replace(found, sent=0),))
    assert dump(database) == before
    assert files(storage) == kept


def test_a_run_that_is_resumed_after_that_is_running_and_then_finished(storage: Path, database: Path) -> None:
    folder = killed_run(storage, uri_of(database))
    sync_folder(storage)
    recorder = Recorder(folder / "tracking", RunRecord.load(folder / "tracking"))
    recorder.start_shipping()
    deadline = time.monotonic() + 20
    while mlflow_runs(uri_of(database))[NEWER].info.status != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    recorder.append([*taken(5), *taken(7)])
    assert recorder.close("FINISHED").unsent == 0
    (run,) = mlflow_runs(uri_of(database)).values()
    assert (run.info.status, run.data.tags[metrics.STATUS_REASON]) == ("FINISHED", "")
    assert steps_of(uri_of(database), run) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("status", "outcome", "ending"),
    [
        ("finished", None, ("FINISHED", None)),
        ("interrupted", None, ("KILLED", "stopped by the user")),
        ("failed", {"status": "failed", "failure": {"reason": "rank 1 died"}}, ("FAILED", "rank 1 died")),
        ("failed", None, ("FAILED", "it failed")),
    ],
)
def test_a_run_that_ended_but_did_not_live_to_close_its_record(
    storage: Path, database: Path, status: str, outcome: Any, ending: tuple[str, str | None]
) -> None:
    folder = killed_run(storage, uri_of(database), status=status)
    if outcome is not None:
        (folder / "tracking" / "outcome.json").write_text(json.dumps(outcome))
    assert sync_folder(folder).is_complete
    (run,) = mlflow_runs(uri_of(database)).values()
    assert (run.info.status, run.data.tags.get(metrics.STATUS_REASON)) == ending


LEDGER = Ledger("core", 100.0, {**dict.fromkeys(RUN_PARTS, 0.0), "training": 90.0}, 50.0, 36.0)


def written(folder: Path, ledger: Ledger) -> None:
    """As a driver leaves it that is killed."""
    (folder / "tracking" / COST_FILE).write_text(json.dumps(ledger.to_json()))


def cost_of(run: Any) -> dict[str, float]:
    return {key: value for key, value in run.data.metrics.items() if key.startswith("cost/")}


def test_a_killed_run_has_cost_what_it_had_written_down(storage: Path, database: Path) -> None:
    folder = killed_run(storage, uri_of(database))
    written(folder, LEDGER)
    assert sync_folder(storage).is_complete
    (run,) = mlflow_runs(uri_of(database)).values()
    assert cost_of(run) == {"cost/core_seconds": 100.0, "cost/price": 1.0, "cost/joules": 50.0}
    assert "| training | 90.0 | 90% | 0.9 |" in run.data.tags[metrics.NOTE]
    client = remote.connect(uri_of(database))
    assert [each.step for each in client.get_metric_history(run.info.run_id, "cost/price")] == [5]
    assert json.loads((folder / "tracking" / "artifacts" / COST_FILE).read_bytes()) == LEDGER.to_json()
    before, kept = dump(database), files(storage)
    assert sync_folder(storage).to_json()["sent"] == 0
    assert (dump(database), files(storage)) == (before, kept)


def test_a_killed_sweep_has_cost_what_it_had_written_down(storage: Path, database: Path) -> None:
    folder = killed_sweep(storage, uri_of(database))
    parts = {**dict.fromkeys(SWEEP_PARTS, 0.0), "unfinished": 60.0, "startup": 20.0}
    written(folder, Ledger("GPU", 80.0, parts, kinds=SWEEP_PARTS))
    assert sync_folder(folder).is_complete
    runs = mlflow_runs(uri_of(database))
    assert {key: cost_of(run) for key, run in runs.items() if cost_of(run)} == {NEWER: {"cost/gpu_seconds": 80.0}}
    assert "| other trials | 60.0 | 75% |" in runs[NEWER].data.tags[metrics.NOTE]


def test_an_older_run_is_not_said_to_go_on(storage: Path, database: Path) -> None:
    killed_run(storage, uri_of(database), OLDER)
    killed_run(storage, uri_of(database), NEWER)
    assert sync_folder(storage).is_complete
    reasons = {key: run.data.tags[metrics.STATUS_REASON] for key, run in mlflow_runs(uri_of(database)).items()}
    assert reasons == {OLDER: "its process is gone", NEWER: GONE}


def test_the_trials_of_a_killed_sweep_get_their_true_status(storage: Path, database: Path) -> None:
    folder = killed_sweep(storage, uri_of(database))
    report = sync_folder(folder)
    assert report.is_complete, report
    runs = mlflow_runs(uri_of(database))
    told = {
        key: (run.info.status, run.data.tags.get(metrics.STATUS_REASON), run.data.tags.get(metrics.TRIAL_STATE))
        for key, run in runs.items()
    }
    assert told == {
        NEWER: ("KILLED", GONE, None),
        f"{NEWER}/0000": ("FINISHED", None, "finished"),
        f"{NEWER}/0001": ("FAILED", "it was failed", "failed"),
        f"{NEWER}/0002": ("KILLED", "it was pruned", "pruned"),
        f"{NEWER}/0003": ("KILLED", GONE, None),
        f"{NEWER}/0004": ("KILLED", GONE, None),
    }
    parents = {run.data.tags.get(metrics.PARENT_RUN) for key, run in runs.items() if key != NEWER}
    assert parents == {runs[NEWER].info.run_id}
    assert [steps_of(uri_of(database), run) for run in runs.values()] == [[1, 2, 3, 4, 5]] * 6
    note = runs[NEWER].data.tags[metrics.NOTE]
    assert "**Best: optimizer.lr=0.1** with val/accuracy 0.5" in note
    assert GONE in note
    assert "running" not in note
    before, kept = dump(database), files(storage)
    assert sync_folder(storage).to_json()["sent"] == 0
    assert (dump(database), files(storage)) == (before, kept)


def test_a_trial_that_is_named_alone_brings_its_sweep(storage: Path, database: Path) -> None:
    folder = killed_sweep(storage, uri_of(database))
    report = sync_folder(folder / "trials" / "0001")
    assert states(report) == {"0001": "complete", NEWER: "complete"}
    assert set(mlflow_runs(uri_of(database))) == {NEWER, f"{NEWER}/0001"}


def test_what_is_going_on_is_left_alone(storage: Path, database: Path) -> None:
    killed_run(storage, uri_of(database), OLDER)
    folder = killed_run(storage, uri_of(database), NEWER)
    with nobody_works_on(storage / "mnist") as nobody:  # as a command does that trains
        assert nobody
        report = sync_folder(storage)
    assert states(report) == {OLDER: "complete", NEWER: "going on"}
    assert report.is_complete
    assert not has_ended(folder / "tracking")
    assert set(mlflow_runs(uri_of(database))) == {OLDER}


def test_nothing_begins_while_a_run_is_sent(storage: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_run(storage, uri_of(database))
    free: list[bool] = []
    send = syncing.sync

    def looks(*given: Any) -> Any:
        with nobody_works_on(storage / "mnist") as nobody:
            free.append(nobody)
        return send(*given)

    monkeypatch.setattr(syncing, "sync", looks)
    assert sync_folder(storage).is_complete
    assert free == [False]
    with nobody_works_on(storage / "mnist") as nobody:
        assert nobody


def test_a_lost_database_and_another_store_get_everything_anew(
    storage: Path, database: Path, prepared_database: Path
) -> None:
    killed_sweep(storage, uri_of(database))
    sync_folder(storage)
    written = {name: data for name, data in files(storage).items() if name.endswith("record.json")}
    for fresh, uri in ((database, None), (database.with_name("moved.db"), uri_of(database.with_name("moved.db")))):
        fresh.unlink(missing_ok=True)
        shutil.copy(prepared_database, fresh)
        report = sync_folder(storage, uri)
        assert report.is_complete, report
        runs = mlflow_runs(uri_of(fresh))
        assert len(runs) == 6
        assert [steps_of(uri_of(fresh), run) for run in runs.values()] == [[1, 2, 3, 4, 5]] * 6
        assert runs[f"{NEWER}/0001"].info.status == "FAILED"
    assert {name: data for name, data in files(storage).items() if name.endswith("record.json")} == written


def test_a_run_that_was_deleted_in_mlflow_is_sent_anew(storage: Path, database: Path) -> None:
    killed_run(storage, uri_of(database))
    (first,) = sync_folder(storage).records
    remote.connect(uri_of(database)).delete_run(str(first.run_id))
    (second,) = sync_folder(storage).records
    assert second.state == "complete"
    assert second.run_id != first.run_id
    (run,) = mlflow_runs(uri_of(database)).values()
    assert (run.info.run_id, run.info.status) == (second.run_id, "KILLED")
    assert steps_of(uri_of(database), run) == [1, 2, 3, 4, 5]


def test_no_wait_is_told_of_what_another_place_had_in_time(
    storage: Path, database: Path, prepared_database: Path
) -> None:
    """A run of last week that is sent to another store was not a week late; nor was one whose process was killed."""
    folder = RunFolder(storage / "mnist" / NEWER)
    folder.write(status="finished", config={"name": "mnist"})
    about = RunRecord(NEWER, "mnist", uri_of(database), "mnist")
    recorder = Recorder(folder.tracking, about)
    recorder.append([replace(point, timestamp_ms=1_000 + point.step) for point in taken()])
    recorder.abandon()
    moved = database.with_name("moved.db")
    shutil.copy(prepared_database, moved)
    for uri in (uri_of(database), uri_of(moved), uri_of(database)):
        (found,) = sync_folder(storage, uri).records
        assert found.state == "complete"
        assert metrics.LAG_SECONDS not in mlflow_runs(uri)[NEWER].data.metrics


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "left open"])
def test_what_only_the_newest_checkpoint_has_is_recorded(storage: Path, database: Path, is_closed: bool) -> None:
    """The desk was away from before the last checkpoint until the worker had ended."""
    folder = RunFolder(storage / "mnist" / NEWER)
    folder.write(status="finished", config={"name": "mnist"})
    recorder = record(folder.tracking, uri_of(database))
    if is_closed:
        recorder.close("FINISHED")
    recorder.abandon()
    kept = [[point.to_json()] for point in taken(9)]
    for step, run, last in ((3, NEWER, 6), (9, NEWER, 9)):
        place = folder.checkpoints / f"step-{step}"
        place.mkdir(parents=True)
        (place / "unrecorded.json").write_bytes(as_file(run, kept[:last]))
    for _ in range(2):
        (found,) = sync_folder(storage).records
        assert (found.state, found.reason) == ("complete", "")
        (run,) = mlflow_runs(uri_of(database)).values()
        assert run.info.status == "FINISHED"
        assert steps_of(uri_of(database), run) == list(range(1, 10))
    assert found.sent == 0


def test_a_checkpoint_of_another_run_or_a_damaged_file_of_it(storage: Path, database: Path) -> None:
    folder = RunFolder(killed_run(storage, uri_of(database), status="finished"))
    place = folder.checkpoints / "step-9"
    place.mkdir(parents=True)
    (place / "unrecorded.json").write_bytes(as_file(OLDER, [[point.to_json()] for point in taken(9)]))
    assert sync_folder(storage).is_complete
    (run,) = mlflow_runs(uri_of(database)).values()
    assert steps_of(uri_of(database), run) == [1, 2, 3, 4, 5]
    (place / "unrecorded.json").write_text("{broken")
    (found,) = sync_folder(storage).records
    assert found.state == "left"
    assert (found.left, found.reason.count("unrecorded.json")) == (0, 1)
    (place / "unrecorded.json").unlink()
    assert sync_folder(storage).is_complete


@pytest.mark.parametrize("name", ["ray", "artifacts", "checkpoints", "pinned"])
def test_a_run_may_have_any_name_and_its_own_folders_are_passed_over(storage: Path, database: Path, name: str) -> None:
    for place in (storage / name / NEWER, storage / "other" / NEWER / name / "deep"):
        record(place / "tracking", uri_of(database), run_id=str(place)).abandon()
    RunFolder(storage / name / NEWER).write(status="finished", config={"name": name})
    RunFolder(storage / "other" / NEWER).write(status="finished", config={"name": "other"})
    assert [each.folder for each in sync_folder(storage).records] == [str(storage / name / NEWER)]


def test_a_store_that_does_not_answer_is_told_in_time_and_changes_nothing(
    storage: Path, dead_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = killed_run(storage, dead_uri)
    kept = files(storage)
    began = time.monotonic()
    assert run_command(["sync", str(storage)]) == 3
    assert time.monotonic() - began < 6
    out, err = capsys.readouterr()
    assert f"MLflow does not answer at {dead_uri}" in err
    assert "--uri" in err
    assert "tracking.offline" not in err
    assert str(folder) in out
    assert files(storage) == kept


def test_the_command_answers_1_when_something_is_left(
    storage: Path, database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(storage.parent)
    killed_run(storage, uri_of(database), OLDER)
    killed_run(storage, uri_of(database), NEWER)
    (storage / "mnist" / OLDER / "tracking" / "record.json").write_text("{broken")
    assert run_command(["sync"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"runs/mnist/{OLDER}") and "record cannot be read" in line for line in lines)
    assert any(line.startswith(f"runs/mnist/{NEWER}") and " complete " in line for line in lines)
    assert lines[-1].startswith("2 records: 1 complete, 1 left; ")
    assert run_command(["sync", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["sent"], told["left"], told["going_on"]) == (0, 1, 0)


def test_trials_wait_for_their_sweep(storage: Path, database: Path) -> None:
    folder = killed_sweep(storage, uri_of(database))
    client = remote.connect(uri_of(database))
    client.delete_experiment(client.create_experiment("mnist"))
    report = sync_folder(folder)
    assert set(states(report).values()) == {"left"}
    reasons = {Path(each.folder).name: each.reason for each in report.records}
    assert "was deleted" in reasons[NEWER]
    assert "sweep's own run" in reasons["0000"]


def test_where_there_is_no_record_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no run is recorded"):
        sync_folder(tmp_path)
    with pytest.raises(EnvironmentFault, match="no such folder"):
        sync_folder(tmp_path / "typo")


def test_the_credentials_of_an_address_are_those_of_the_environment(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-S3cr3t"
    killed_run(storage, f"http://me:{canary}@host:5000")
    used: list[str] = []

    def send(folder: Path, uri: str, patience: float) -> Any:
        used.append(uri)
        return ShipReport(None, None, "id", 0, None)

    monkeypatch.setattr(syncing, "sync", send)
    monkeypatch.setattr(syncing, "probe", lambda uri: None)
    for variable in ("", f"http://me:{canary}@elsewhere:5000", f"http://me:{canary}@host:5000/"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
        sync_folder(storage)
    sync_folder(storage, "http://given")
    assert used == ["http://host:5000", "http://host:5000", f"http://me:{canary}@host:5000", "http://given"]


def test_a_record_of_somebody_else_is_sent_too(tmp_path: Path, database: Path) -> None:
    record(tmp_path / "own" / "tracking", uri_of(database)).abandon()
    (found,) = sync_folder(tmp_path).records
    assert isinstance(found, Synced)
    assert found.state == "complete"


def test_200_records_that_are_complete_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from paceline.display import print_sync

    report = SyncReport(tuple(Synced(f"/r/{number}", "complete") for number in range(200)))
    assert print_sync(report, as_json=False) == 0
    assert capsys.readouterr().out == "200 records: 200 complete; 0 entries sent\n"


def test_what_is_waited_for_is_told_and_where_it_is_shown(
    storage: Path, database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(storage.parent)
    killed_run(storage, uri_of(database))
    send = syncing.sync

    def slowly(*given: Any) -> Any:
        time.sleep(0.3)
        return send(*given)

    monkeypatch.setattr(syncing, "sync", slowly)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.1)
    assert run_command(["sync"]) == 0
    out, err = capsys.readouterr()
    (run,) = mlflow_runs(uri_of(database)).values()
    page = f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    (line,) = [line for line in out.splitlines() if page in line]
    assert line.startswith(f"runs/mnist/{NEWER}: http://127.0.0.1:5000/")
    assert line.endswith("(after `paceline ui`, which may print another port)")
    assert "sending 1 record (up to 3 s without an answer" in err
    assert "0 of 1 record, 0 entries sent … 0 s" in err


def test_a_server_that_is_waited_for_is_named_without_its_password(storage: Path, dead_uri: str) -> None:
    killed_run(storage, dead_uri)
    told: list[str] = []
    sync_folder(storage, dead_uri.replace("://", "://me:canary@"), told.append)
    assert told == [f"waiting for {dead_uri.replace('://', '://***@')} (up to 3 s)"]
