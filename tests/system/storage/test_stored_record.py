"""The record of a run in a store: never ahead of itself, taken over only by its continuation, and before MLflow."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.storage.address import OUTCOME, RunStore
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_record import RecordCopy
from paceline.tracking import mlflow_connection as mlflow
from paceline.tracking import mlflow_uploader
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.upload_cursor import hurry, is_hurried, note_stored, stored_bytes
from support.golden import Golden
from support.storage.relay import Relay
from support.tracking.recording import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recorder's folder."""
    (tmp_path / "tracking").mkdir()
    return tmp_path / "tracking"


@pytest.fixture
def run(remote: RemoteFolder) -> RemoteFolder:
    return RemoteFolder(RunStore(str(remote.address.pinned()), "net", "run-1").address)


def note(folder: Path, *steps: int) -> None:
    journal = Journal(folder / JOURNAL_FILE)
    journal.append([("point", MetricPoint("train/loss", 1.0 / step, step, step).to_json()) for step in steps])
    journal.close()


def journal_of(run: RemoteFolder) -> bytes:
    return (run / "tracking").read(JOURNAL_FILE) or b""


def test_only_what_has_changed_is_copied_and_the_journal_goes_last(
    folder: Path, run: RemoteFolder, relay: Relay
) -> None:
    note(folder, 1)
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "z.txt").write_text("z")
    (folder / "record.json").write_text("{}")
    (folder / ".record.json.new").write_text("half")
    copy = RecordCopy(run, folder)
    assert copy.is_behind()
    copy.push()
    names = [each.split("tracking/")[1] for each in relay.seen("PUT .*/tracking/")]
    assert sorted(names) == ["artifacts/z.txt", "journal.jsonl", "record.json"]
    assert names[-1] == "journal.jsonl"
    assert not copy.is_behind()
    relay.forget()
    note(folder, 2)
    assert copy.is_behind()
    copy.push()
    assert [each.split("tracking/")[1] for each in relay.seen("PUT .*/tracking/.")] == ["journal.jsonl"]
    assert set(run.files()) == {f"tracking/{name}" for name in names}
    assert stored_bytes(folder) == (folder / JOURNAL_FILE).stat().st_size


def test_a_file_that_comes_during_a_copy_is_not_named_by_the_journal_before_it_is_there(
    folder: Path, run: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(folder, 1)
    (folder / "record.json").write_text("{}")
    copy, write = RecordCopy(run, folder), RemoteFolder.write

    def writes(self: RemoteFolder, name: str, data: bytes) -> None:
        if name == "record.json":
            (folder / "artifacts").mkdir()
            (folder / "artifacts" / "z.txt").write_text("z")
            note(folder, 2)
        write(self, name, data)

    monkeypatch.setattr(RemoteFolder, "write", writes)
    copy.push()
    assert journal_of(run).count(b"\n") == 1
    assert copy.is_behind()
    copy.push()
    assert journal_of(run) == (folder / JOURNAL_FILE).read_bytes()
    assert "tracking/artifacts/z.txt" in run.files()


def test_the_outcome_of_an_earlier_launch_is_removed(folder: Path, run: RemoteFolder) -> None:
    note(folder, 1)
    (folder / OUTCOME).write_text("{}")
    RecordCopy(run, folder).push()
    copy = RecordCopy(run, folder)
    assert copy.take_over(may_be_ahead=True)
    copy.push()
    assert not copy.is_behind()
    (folder / OUTCOME).unlink()
    assert copy.is_behind()
    copy.push()
    assert sorted((run / "tracking").files()) == ["journal.jsonl"]
    assert not copy.is_behind()


def test_a_folder_that_is_removed_takes_nothing_of_the_store_along(folder: Path, run: RemoteFolder) -> None:
    note(folder, 1)
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "config.yaml").write_text("name: net")
    copy = RecordCopy(run, folder)
    copy.push()
    before = journal_of(run)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        copy.push()
    assert journal_of(run) == before
    note(folder, 1, 2)
    copy.push()
    note(folder, 3)
    copy.push()  # not only the first copy leaves the rest alone
    assert sorted((run / "tracking").files()) == ["artifacts/config.yaml", "journal.jsonl"]
    assert not copy.is_behind()
    assert len(journal_of(run)) > len(before)
    assert stored_bytes(folder) == len(journal_of(run))


def test_a_line_on_its_way_stays_behind(folder: Path, run: RemoteFolder) -> None:
    note(folder, 1)
    whole = (folder / JOURNAL_FILE).read_bytes()
    with (folder / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"n": 2, "ki')
    RecordCopy(run, folder).push()
    assert journal_of(run) == whole
    assert stored_bytes(folder) == len(whole)


def test_a_journal_that_continues_the_one_in_the_store_stays(folder: Path, run: RemoteFolder) -> None:
    note(folder, 1)
    RecordCopy(run, folder).push()
    note(folder, 2)
    here = (folder / JOURNAL_FILE).read_bytes()
    copy = RecordCopy(run, folder)
    assert copy.take_over(may_be_ahead=True)
    assert (folder / JOURNAL_FILE).read_bytes() == here
    assert stored_bytes(folder) == len(journal_of(run)) < len(here)
    copy.push()
    assert journal_of(run) == here


@pytest.mark.parametrize("may_be_ahead", [False, True])
def test_another_journal_is_replaced(folder: Path, run: RemoteFolder, tmp_path: Path, may_be_ahead: bool) -> None:
    note(folder, 1)
    RecordCopy(run, folder).push()
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    note(folder, 2)
    (folder / "strange.json").write_text("{}")
    note(other, 5)
    RecordCopy(run, other).push()
    assert not RecordCopy(run, folder).take_over(may_be_ahead)
    assert (folder / JOURNAL_FILE).read_bytes() == (other / JOURNAL_FILE).read_bytes() == journal_of(run)
    assert not (folder / "strange.json").exists()
    assert stored_bytes(folder) == len(journal_of(run))


def test_ahead_of_a_store_that_has_no_journal_yet(folder: Path, run: RemoteFolder) -> None:
    note(folder, 1)
    assert RecordCopy(run, folder).take_over(may_be_ahead=True)
    assert stored_bytes(folder) == 0
    assert not RecordCopy(run, folder).take_over(may_be_ahead=False)
    assert not (folder / JOURNAL_FILE).exists()


def test_who_waits_is_noticed(folder: Path, run: RemoteFolder) -> None:
    hurry(folder)
    assert is_hurried(folder)
    note(folder, 1)
    RecordCopy(run, folder).push()
    assert not is_hurried(folder)


# MLflow knows no more than the store


@pytest.fixture
def recorder(
    folder: Path, tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], RunRecorder]:
    """Opens the record of a run, whose MLflow is a database."""
    monkeypatch.setattr(mlflow_uploader, "INTERVAL_SECONDS", 0.05)
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    record = RunRecord("run-1", "net", f"sqlite:///{tmp_path / 'mlflow.db'}", "stored", picture=False)
    return lambda: RunRecorder(folder, record)


def in_mlflow(tmp_path: Path) -> list[int]:
    """Steps of the losses that MLflow has."""
    client = mlflow.connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("stored")
    runs = client.search_runs([experiment.experiment_id]) if experiment is not None else []
    return sorted(point.step for run in runs for point in client.get_metric_history(run.info.run_id, "train/loss"))


def test_mlflow_is_sent_what_the_store_has(
    folder: Path, tmp_path: Path, recorder: Callable[[], RunRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, attempt = [0], mlflow_uploader.MlflowUploader._attempt

    def counted(self: mlflow_uploader.MlflowUploader) -> bool:
        attempts[0] += 1
        return attempt(self)

    monkeypatch.setattr(mlflow_uploader.MlflowUploader, "_attempt", counted)
    note_stored(folder, 0)
    opened = recorder()
    opened.append([MetricPoint("train/loss", 1.0, 1, 1)])
    note_stored(folder, opened.size)
    opened.append([MetricPoint("train/loss", 0.5, 2, 2)])
    opened.start_uploading()
    until(lambda: in_mlflow(tmp_path) == [1])
    rounds = attempts[0]
    until(lambda: attempts[0] > rounds + 3)
    assert in_mlflow(tmp_path) == [1]
    note_stored(folder, opened.size)
    until(lambda: in_mlflow(tmp_path) == [1, 2])
    opened.abandon()


def test_a_store_that_stays_behind_is_named_at_the_end(
    folder: Path, tmp_path: Path, recorder: Callable[[], RunRecorder], golden: Golden
) -> None:
    note_stored(folder, 1 << 30)
    opened = recorder()
    opened.append([MetricPoint("train/loss", 1.0, 1, 1)])
    opened.start_uploading()
    until(lambda: in_mlflow(tmp_path) == [1])
    note_stored(folder, 0)
    opened.append([MetricPoint("train/loss", 1.0, 2, 2)])
    report = opened.close("FINISHED", timeout_seconds=1.0)
    assert report.error
    golden(str(report.error))
    assert is_hurried(folder)
    assert in_mlflow(tmp_path) == [1]
    note_stored(folder, 1 << 30)
    assert recorder().close("FINISHED").error is None
    assert in_mlflow(tmp_path) == [1, 2]
