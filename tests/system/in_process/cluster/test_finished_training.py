"""Training that ended although its command did not answer: the same command records it, and does not train."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import train_worker
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.run_result import RunResult
from paceline.cluster.train import train
from paceline.runs.left_open import Ending, Owner
from paceline.runs.reopening import load_run
from paceline.storage.address import OUTCOME
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.journal import JOURNAL_FILE, Journal
from support.cluster.coordinators import Events, entries_of, no_space, tags_of
from support.cluster.local_runs import small_config

pytestmark = pytest.mark.usefixtures("work")


class Died(BaseException):
    """The program ends at once."""


def die(*given: Any, **named: Any) -> Any:
    raise Died


def config(**changes: Any) -> Any:
    usual = {"tracking__price_per_hour": 2.0, "scaling__cpus_per_worker": 1, "lr_scheduler__warmup_steps": 99}
    return small_config(**{**usual, **changes})


def died_after_training(monkeypatch: pytest.MonkeyPatch, at: str = "", **changes: Any) -> RunFolder:
    """The folder of a run whose program died after its last step: at a function, or before it had answered."""
    with monkeypatch.context() as patch:
        if at:
            patch.setattr(at, die)
        with pytest.raises(Died):
            train(config(**changes), listener=Events(), on_result=None if at else die)
    (file,) = Path("runs/run").glob("*/run.json")
    return RunFolder(file.parent.absolute())


def run_count() -> int:
    return len(list(Path("runs/run").glob("*/run.json")))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Has an entry for each time that something is trained."""
    begun: list[Any] = []
    run_here: Callable[..., Any] = train_worker.run_here

    def noting(*given: Any) -> Any:
        begun.append(given)
        return run_here(*given)

    monkeypatch.setattr(train_worker, "run_here", noting)
    return begun


PLACES = [
    "",
    "paceline.cluster.run_coordinator.RunCoordinator.close",
    "paceline.cluster.train_launch.TrainLaunch.conclude",
]


@pytest.mark.parametrize("at", PLACES, ids=["answer", "record", "conclusion"])
def test_the_same_command_gives_the_result_of_training_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, trainings: list[Any], at: str
) -> None:
    folder = died_after_training(monkeypatch, at)
    assert (folder.read()["status"], len(trainings)) == ("running", 1)
    whole = train(config(storage__path="whole"), listener=Events())
    before = sum(entry.kind == "point" for entry in Journal(folder.tracking / JOURNAL_FILE).read())
    answers: list[RunResult] = []
    result = train(config(), listener=Events(), on_result=answers.append)
    assert len(trainings) == 2
    assert answers == [result]
    assert (result.run_id, result.status, result.steps) == (folder.run_id, "finished", whole.steps)
    assert result.weights_sha256 == whole.weights_sha256
    assert Path(result.checkpoint) == folder.checkpoints / f"step-{result.steps}"
    assert (Path(result.checkpoint) / "MANIFEST.json").is_file()
    keys = [(key, step) for key, _, step in result.points]
    assert len(set(keys)) == len(keys) >= before
    assert {(k, s) for k, s in keys if k.startswith("cost/")} == {
        (key, step) for key, _, step in whole.points if key.startswith("cost/")
    }
    assert result.samples_per_second > 0
    assert [entry["status"] for entry in entries_of(folder.tracking, "status")][-1] == "FINISHED"
    assert r"\[warmup-too-long\]" in tags_of(folder.tracking)[metrics.NOTE]
    assert folder.read()["status"] == "finished"
    assert load_run(folder.path).status == "finished"
    assert train(config(), listener=Events()).folder != folder.path, "a finished run is never continued"


def test_the_costs_stay_those_of_the_launch_that_has_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = died_after_training(monkeypatch, "paceline.cluster.run_coordinator.RunCoordinator.close")
    left = Ledger.read(folder.tracking)
    cost = train(config(), listener=Events()).cost
    assert left is not None
    assert cost is not None
    assert cost.allocated == left.allocated > 0
    assert cost.parts["training"] == left.parts["training"] > 0
    assert cost.price == left.price


def test_a_config_that_asks_for_more_training_trains_on(monkeypatch: pytest.MonkeyPatch, trainings: list[Any]) -> None:
    folder = died_after_training(monkeypatch)
    result = train(config(trainer__epochs=3), listener=Events())
    assert len(trainings) == 2
    assert (result.run_id, result.steps) == (folder.run_id, 6)


def corrupt(folder: RunFolder) -> None:
    (newest,) = folder.checkpoints.glob("step-*")
    (newest / "model.safetensors").write_bytes(b"not the weights")


def forget(folder: RunFolder) -> None:
    (folder.tracking / OUTCOME).unlink()


def shorten(folder: RunFolder) -> None:
    outcome = json.loads((folder.tracking / OUTCOME).read_text())
    del outcome["weights_sha256"]
    (folder.tracking / OUTCOME).write_text(json.dumps(outcome))


@pytest.mark.parametrize("spoil", [corrupt, forget, shorten])
def test_without_a_whole_outcome_and_checkpoint_the_run_is_resumed(
    monkeypatch: pytest.MonkeyPatch, trainings: list[Any], spoil: Callable[[RunFolder], None]
) -> None:
    folder = died_after_training(monkeypatch)
    whole = json.loads((folder.tracking / OUTCOME).read_text())["weights_sha256"]
    spoil(folder)
    result = train(config(), listener=Events())
    assert len(trainings) == 2
    assert (result.run_id, result.weights_sha256) == (folder.run_id, whole)
    assert run_count() == 1


def test_another_config_is_refused_as_for_any_unfinished_run(monkeypatch: pytest.MonkeyPatch) -> None:
    died_after_training(monkeypatch)
    with pytest.raises(ValueError, match=r"optimizer\.lr"):
        train(config(optimizer__lr=0.5), listener=Events())


def test_sync_takes_such_a_run_for_a_finished_one(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = died_after_training(monkeypatch, "paceline.cluster.run_coordinator.RunCoordinator.close")
    assert Owner.of(folder.tracking, {}).ending() == Ending("FINISHED")
    forget(folder)
    assert Owner.of(folder.tracking, {}).ending().status == "KILLED"


def test_a_full_disk_at_the_end_loses_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    result = train(
        config(), listener=events, on_result=lambda result: monkeypatch.setattr(RunFolder, "write", no_space)
    )
    assert (result.status, events.warnings) == ("finished", ["not-written"])
