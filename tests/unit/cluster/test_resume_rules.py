"""Differences between configs, the finished run that `--extend` trains further, and the reasons to refuse it."""

from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.resume_rules import config_difference
from paceline.cluster.train import make_record, prepare_launch
from paceline.cluster.train_launch import worker_spec
from paceline.cluster.unfinished_runs import ClaimedRun, claim_run
from paceline.config.derived import derive
from paceline.errors import ConfigError
from paceline.tracking import metrics
from support.cluster.coordinators import Events
from support.cluster.local_runs import left_run, local_config, save_checkpoint
from support.golden import Golden
from support.refusals import refused

STOP = {"name": "early_stopping", "patience": 3}
EMA = {"name": "ema", "decay": 0.999}
OWN = {"path": "own:Log", "args": {"every": 1}}


def config(**changes: Any) -> Any:
    return local_config(**{"trainer__epochs": 2, **changes})


def left(storage: Path, status: str = "finished", step: int = 8, **options: Any) -> ClaimedRun[Any]:
    """A run that has come to a checkpoint at the end of its second epoch, with a status."""
    return left_run(storage, status, step, epoch=2, **{"config": config(), **options})


def extended(storage: Path, **changes: Any) -> ClaimedRun[Any]:
    return left_run(storage, config=config(**changes), intent="extend")


def test_an_extension_is_a_run_of_its_own_that_begins_with_the_finished_ones_checkpoints(tmp_path: Path) -> None:
    first = left(tmp_path)
    before = {path: path.read_bytes() for path in first.folder.path.rglob("*") if path.is_file()}
    run = extended(tmp_path, trainer__epochs=4)
    assert not run.resumed
    assert run.folder.path != first.folder.path
    own, others = (each.folder.checkpoints / "step-8" / "model.safetensors" for each in (run, first))
    assert own.samefile(others)
    content = run.folder.read()
    assert (content["extended_from"], content["extended_from_step"]) == (first.folder.run_id, 8)
    assert {path: path.read_bytes() for path in first.folder.path.rglob("*") if path.is_file()} == before
    record = make_record(config(), run, "sqlite:///x.db", derive(config(), None))
    assert record.tags[metrics.EXTENDED_FROM] == first.folder.run_id


def test_the_same_command_continues_an_unfinished_extension(tmp_path: Path) -> None:
    left(tmp_path)
    first = extended(tmp_path, trainer__epochs=4)
    again = extended(tmp_path, trainer__epochs=4)
    assert again.resumed
    assert again.folder == first.folder
    assert extended(tmp_path, trainer__epochs=None, trainer__max_steps=100).folder == first.folder
    plain = left_run(tmp_path, config=config(trainer__epochs=None, trainer__max_steps=100))
    assert (plain.resumed, plain.folder) == (True, first.folder)


@pytest.mark.parametrize("extend", [False, True])
def test_the_old_length_does_not_end_an_unfinished_extension(tmp_path: Path, extend: bool, golden: Golden) -> None:
    left(tmp_path)
    run_id = extended(tmp_path, trainer__epochs=4).folder.run_id
    (problem,) = refused(ConfigError, claim_run, config(), tmp_path, "extend" if extend else "continue").problems
    assert (problem.code, problem.key) == ("resume", "trainer.epochs")
    golden(str(problem).replace(run_id, "<id>"))


@pytest.mark.parametrize("intent", ["continue", "resume"])
def test_a_short_trial_does_not_end_a_long_run(tmp_path: Path, intent: Any, golden: Golden) -> None:
    """It would be finished without a step, and the same command could not continue it any more."""
    run_id = left(tmp_path, "interrupted", config=config(trainer__epochs=300)).folder.run_id
    (problem,) = refused(ConfigError, claim_run, config(trainer__epochs=1), tmp_path, intent).problems
    assert (problem.code, problem.key) == ("resume", "trainer.epochs")
    golden(str(problem).replace(run_id, "<id>"))
    assert left_run(tmp_path, config=config(trainer__epochs=3)).resumed  # shorter, with something left to do


def test_a_run_that_has_all_its_steps_is_concluded_by_a_shorter_one(tmp_path: Path) -> None:
    left(tmp_path, "interrupted")
    assert left_run(tmp_path, config=config(trainer__epochs=1)).resumed


def test_a_finished_extension_is_extended_again(tmp_path: Path) -> None:
    left(tmp_path)
    first = left(tmp_path, step=16, config=config(trainer__epochs=3), intent="extend")
    second = extended(tmp_path, trainer__epochs=5)
    assert second.folder.read()["extended_from"] == first.folder.run_id
    assert second.folder.read()["extended_from_step"] == 16


def test_other_changes_than_the_length_are_listed(tmp_path: Path, golden: Golden) -> None:
    run_id = left(tmp_path).folder.run_id
    problems = refused(
        ConfigError, extended, tmp_path, trainer__epochs=4, optimizer__lr=0.2, seed=3, scaling__num_workers=2
    ).problems
    assert [(each.code, each.key) for each in problems] == [("extend", "optimizer.lr"), ("extend", "seed")]
    golden(str(problems[0]).replace(run_id, "<id>"))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "trainer.epochs"),
        ({"trainer__epochs": 1}, "trainer.epochs"),
        ({"trainer__epochs": 4, "trainer__max_steps": 8}, "trainer.max_steps"),
        ({"trainer__epochs": None}, "trainer.epochs"),
    ],
)
def test_no_more_training_than_was_done_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str, golden: Golden
) -> None:
    run_id = left(tmp_path).folder.run_id
    (problem,) = refused(ConfigError, extended, tmp_path, **changes).problems
    assert (problem.code, problem.key) == ("nothing-to-extend", key)
    golden(str(problem).replace(run_id, "<id>"))
    assert len(list((tmp_path / "run").glob("*/run.json"))) == 1


@pytest.mark.parametrize("status", [None, "running", "failed", "interrupted", "no checkpoint"])
def test_there_is_nothing_to_extend(tmp_path: Path, status: str | None, golden: Golden) -> None:
    run_id = "none"
    if status is not None:
        is_lost = status == "no checkpoint"
        run_id = left(tmp_path, "finished" if is_lost else status, step=0 if is_lost else 4).folder.run_id
    (problem,) = refused(ConfigError, extended, tmp_path, trainer__epochs=4).problems
    assert (problem.code, problem.key) == ("nothing-to-extend", "name")
    golden(str(problem).replace(run_id, "<id>"))
    assert (tmp_path / "run").exists() == (status is not None)


def test_a_run_that_was_started_by_mistake_does_not_hide_the_finished_one(tmp_path: Path) -> None:
    first = left(tmp_path)
    left_run(tmp_path, "interrupted", config=config())
    run = extended(tmp_path, trainer__epochs=4)
    assert run.folder.read()["extended_from"] == first.folder.run_id
    left_run(tmp_path, "interrupted", config=config(), intent="new")
    assert extended(tmp_path, trainer__epochs=4).folder == run.folder, "the extension itself is continued"


def test_a_broken_last_checkpoint_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    first = left(tmp_path)
    broken = save_checkpoint(first.folder.checkpoints, 12, epoch=3)
    (broken / "model.safetensors").write_bytes(b"x")
    assert extended(tmp_path, trainer__epochs=3).folder.read()["extended_from_step"] == 8
    assert broken.is_dir()


def test_the_processes_that_train_know_where_the_finished_run_ended(work: Path) -> None:
    left(work / "runs")
    for changes, intent, step in [({"trainer__epochs": 4}, "extend", 8), ({"name": "other"}, "continue", None)]:
        launch = prepare_launch(config(**changes), intent, None, Events())
        launch.run.release()
        assert worker_spec(launch).extended_from_step == step


# Differences between two configs


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ([STOP, EMA], [{**STOP, "patience": 5}, EMA], {"callbacks.early_stopping.patience": (3, 5)}),
        ([STOP, OWN], [STOP, {**OWN, "args": {"every": 2}}], {"callbacks.own:Log.args.every": (1, 2)}),
        ([STOP], [STOP, EMA], {"callbacks.ema": (None, EMA)}),
        ([STOP, EMA], [EMA], {"callbacks.early_stopping": (STOP, None)}),
        ([STOP, EMA], [EMA, STOP], {"callbacks": ([STOP, EMA], [EMA, STOP])}),
        ([EMA, EMA], [EMA], {"callbacks": ([EMA, EMA], [EMA])}),
        ([1, 2], [1, 3], {"callbacks": ([1, 2], [1, 3])}),
        (None, [EMA], {"callbacks": (None, [EMA])}),
    ],
)
def test_a_list_of_components_differs_in_its_changed_entries(
    old: Any, new: Any, difference: dict[str, tuple[Any, Any]]
) -> None:
    assert config_difference({"callbacks": old}, {"callbacks": new}) == difference
