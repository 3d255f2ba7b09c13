"""A run whose folder is removed while it is in progress: it ends with an error, and its MLflow run ends."""

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from paceline import Callback
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.train import train
from paceline.engine.manifest import verify
from paceline.errors import EnvironmentFault
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RECORD_FILE, RunRecord
from paceline.tracking.run_recorder import RunRecorder
from support.cluster.coordinators import Events, entries_of
from support.cluster.local_runs import enter_folder, local_config
from support.golden import Golden

STEPS = 20_000
"""More than are done before the removal is noticed, also on a busy machine."""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_folder(tmp_path, monkeypatch)


def config(**changes: Any) -> Any:
    small = {
        "model__in_features": 8,
        "model__num_classes": 4,
        "data__shape": [8],
        "data__num_classes": 4,
        "data__num_samples": 64,
        "trainer__epochs": STEPS // 2,
        "trainer__log_every_n_steps": 1,
        "checkpoint__every_n_epochs": 50,
    }
    return local_config(**{**small, **changes})


class Removing(Callback):
    """Removes a folder after a step, or at the end."""

    def __init__(self, folder: Path, step: int | None) -> None:
        self.folder, self.step = folder, step

    def on_step_end(self, ctx: Any) -> None:
        if ctx.step == self.step:
            shutil.rmtree(self.folder)

    def on_train_end(self, ctx: Any) -> None:
        if self.step is None:
            shutil.rmtree(self.folder)


def remove(what: str, step: int | None) -> tuple[EnvironmentFault, Events, Path]:
    """Train while a folder is removed: the error, the events, and the folder of the run."""
    events = Events()
    epochs = STEPS // 2 if step else 1
    with pytest.raises(EnvironmentFault) as caught:
        train(config(trainer__epochs=epochs), callbacks=[Removing(Path(what), step)], listener=events)
    return caught.value, events, Path(str(caught.value.fields["folder"]))


@pytest.mark.parametrize("what", ["runs", "runs/run"])
def test_training_saves_its_state_and_ends_when_its_folder_is_removed(what: str, golden: Golden) -> None:
    error, events, folder = remove(what, 20)
    assert (error.code, error.exit_code) == ("run-folder-removed", 3)
    assert events.warnings.count("run-folder-removed") == 1
    checkpoint = Path(str(error.fields["checkpoint"]))
    assert checkpoint.parent.parent == folder
    assert 20 < verify(checkpoint) < STEPS
    assert not (folder / RunFolder.FILE).exists(), "what is left is no run that a command could resume"
    golden(str(error).replace(folder.name, "<id>").replace(checkpoint.name, "<checkpoint>"))


@pytest.mark.parametrize("step", [20, None])
def test_the_record_ends_as_failed_and_can_be_sent(step: int | None) -> None:
    error, _, folder = remove("runs", step)
    tracking = folder / "tracking"
    assert entries_of(tracking, "status")[-1]["status"] == "FAILED"
    tags = {key: value for entry in entries_of(tracking, "tags") for key, value in entry["tags"].items()}
    assert tags["paceline.status_reason"] == error.message
    assert RunRecord.load(tracking).run_id == folder.name
    numbers = [json.loads(line)["n"] for line in (tracking / JOURNAL_FILE).read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_same_command_starts_a_new_run(work: Path) -> None:
    _, _, folder = remove("runs", 20)
    result = train(config(trainer__epochs=2), listener=Events())
    assert result.run_id != folder.name
    assert result.status == "finished"


def test_a_run_s_file_is_not_written_again_without_its_config(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write(status="running", config={"name": "run"})
    shutil.rmtree(folder.path)
    with pytest.raises(FileNotFoundError):
        folder.write(status="finished")
    assert folder.add_warnings(["a warning"]) == ("a warning",)
    assert not folder.path.exists()


# The journal


def points(*steps: int) -> list[MetricPoint]:
    return [MetricPoint("train/loss", 1.0 / step, step, step) for step in steps]


def replace_by_an_empty_file(folder: Path) -> None:
    (folder / JOURNAL_FILE).unlink()
    (folder / JOURNAL_FILE).touch()


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("remove", [shutil.rmtree, move_away, replace_by_an_empty_file])
def test_a_journal_that_was_removed_is_noticed_and_written_again(
    tmp_path: Path, remove: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tracking.journal.COPY_BYTES", 50)
    folder = tmp_path / "tracking"
    recorder = RunRecorder(folder, RunRecord("r", "n", "http://127.0.0.1:9", "e"))
    recorder.append(points(1, 2))
    whole = (folder / JOURNAL_FILE).read_bytes()
    assert not recorder.was_removed
    remove(folder)
    assert recorder.append(points(2, 3)) == 1
    assert recorder.was_removed
    recorder.append(points(4))
    assert (folder / JOURNAL_FILE).read_bytes().startswith(whole)
    read = [entry for entry in Journal(folder / JOURNAL_FILE).read() if entry.kind == "point"]
    assert [entry.content["step"] for entry in read] == [1, 2, 3, 4]
    assert [entry.sequence for entry in read] == [1, 2, 3, 4]
    recorder.conclude("FAILED")
    assert (folder / RECORD_FILE).exists()
    recorder.abandon()


def test_a_removed_journal_is_written_again_once_by_the_processes_that_have_it_open(tmp_path: Path) -> None:
    file = tmp_path / "tracking" / JOURNAL_FILE
    seen: list[int] = []
    first, second = Journal(file), Journal(file, lambda entry: seen.append(entry.sequence))
    first.append([("point", points(1)[0].to_json())])
    with second.alone():
        pass
    first.append([("point", points(2)[0].to_json())])  # which the second one does not know
    shutil.rmtree(file.parent)
    second.append([("point", points(3)[0].to_json())])
    first.append([("point", points(4)[0].to_json())])
    assert [(entry.sequence, entry.content["step"]) for entry in first.read()] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert first.was_removed
    assert second.was_removed
    assert seen[-1] == 2
    for each in (first, second):
        each.close()


def test_a_process_that_is_just_appending_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "tracking" / JOURNAL_FILE
    journal = Journal(file)
    journal.append([("point", points(1)[0].to_json())])
    late = json.dumps({"n": 2, "kind": "point", **points(2)[0].to_json()}) + "\n"
    with file.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        shutil.rmtree(file.parent)
        appending = Thread(target=lambda: journal.append([("point", points(3)[0].to_json())]))
        appending.start()
        appending.join(0.3)
        assert appending.is_alive()
        other.write(late)
    appending.join()
    assert [entry.content["step"] for entry in journal.read()] == [1, 2, 3]
    journal.close()


def test_a_journal_that_cannot_be_written_again_yet_is_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "tracking" / JOURNAL_FILE)
    journal.append([("point", points(1)[0].to_json())])
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(OSError, match="ot a directory"):
        journal.append([("point", points(2)[0].to_json())])
    (tmp_path / "run").unlink()
    journal.append([("point", points(3)[0].to_json())])
    assert [entry.content["step"] for entry in journal.read()] == [1, 3]
    journal.close()


def test_a_journal_that_is_left_alone_was_not_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL_FILE)
    for _ in range(3):
        journal.append([("point", points(1)[0].to_json())])
        journal.close()
    assert not journal.was_removed
