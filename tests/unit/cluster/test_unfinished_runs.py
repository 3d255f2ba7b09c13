"""Which run a command resumes."""

import fcntl
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import unfinished_runs
from paceline.cluster.unfinished_runs import claim_run, intent_of
from paceline.errors import ConfigError, EnvironmentFault
from support.cluster.coordinators import no_space
from support.cluster.local_runs import left_run
from support.cluster.local_runs import local_config as config
from support.golden import Golden
from support.refusals import refused


def test_an_unfinished_run_is_resumed_and_a_finished_one_is_not(tmp_path: Path) -> None:
    first, *unfinished = (left_run(tmp_path, status=status) for status in (None, "running", "failed", "interrupted"))
    finished = left_run(tmp_path, status="finished")
    assert not first.resumed
    assert all(run.resumed and run.folder == first.folder for run in (*unfinished, finished))
    new = left_run(tmp_path)
    assert not new.resumed
    assert new.folder != first.folder
    assert left_run(tmp_path, intent="new").folder != new.folder


def test_ids_sort_by_the_time_of_the_start_within_one_second_too(tmp_path: Path) -> None:
    ids = [left_run(tmp_path, status="finished").folder.run_id for _ in range(20)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 20


def test_an_id_follows_one_of_a_machine_whose_clock_is_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(unfinished_runs.time, "time", lambda: now + 600)
        ahead = left_run(tmp_path, status="finished").folder.run_id
    ids = [left_run(tmp_path, status="finished", step=4, intent="new").folder.run_id for _ in range(3)]
    assert [ahead, *ids] == sorted({ahead, *ids})
    assert left_run(tmp_path, intent="extend", config=config(trainer__epochs=9)).folder.run_id > ids[-1]


def test_the_file_of_a_resumed_run_has_the_config_that_it_is_resumed_with(tmp_path: Path) -> None:
    first = left_run(tmp_path, step=4)
    monitored = config(trainer__epochs=7, checkpoint__monitor="val/loss", checkpoint__mode="max")
    assert left_run(tmp_path, config=monitored).folder == first.folder
    stored = first.folder.read()["config"]
    assert (stored["trainer"]["epochs"], stored["checkpoint"]["monitor"]) == (7, "val/loss")


def test_a_damaged_file_is_reported_and_not_taken_for_an_empty_one(tmp_path: Path, golden: Golden) -> None:
    folder = left_run(tmp_path, step=4).folder
    whole = (folder.path / "run.json").read_bytes()
    (folder.path / "run.json").write_bytes(whole[:100])
    refusal = refused(EnvironmentFault, left_run, tmp_path)
    assert (refusal.code, refusal.fields["file"]) == ("run-file-damaged", str(folder.path / "run.json"))
    golden(str(refusal).replace(folder.run_id, "<id>"))
    (folder.path / "run.json").write_bytes(whole)
    assert left_run(tmp_path).folder == folder


def test_another_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    left_run(tmp_path, step=4)
    refusal = refused(ConfigError, left_run, tmp_path, config=config(optimizer__lr=0.2, seed=3))
    assert {problem.key for problem in refusal.problems} == {"optimizer.lr", "seed"}
    assert "0.1" in str(refusal)
    assert "0.2" in str(refusal)


def test_some_keys_may_differ(tmp_path: Path) -> None:
    first = left_run(tmp_path, step=4)
    changed = config(scaling__num_workers=2, trainer__epochs=7, data__num_workers=2, data__micro_batch_size=16)
    assert left_run(tmp_path, config=changed).folder == first.folder


def test_a_run_that_saved_nothing_is_not_resumed_with_another_config(tmp_path: Path) -> None:
    first = left_run(tmp_path, status="failed")
    second = left_run(tmp_path, config=config(optimizer__lr=0.2))
    assert not second.resumed
    assert second.folder != first.folder


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_fork_that_was_not_completed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    first = left_run(tmp_path, step=4)
    forked: dict[str, Any] = {"config": config(optimizer__lr=0.2), "intent": "fork"}
    with monkeypatch.context() as patch:
        patch.setattr(unfinished_runs, "remember_folders", no_space)
        if is_killed:
            patch.setattr(unfinished_runs.shutil, "rmtree", lambda *given, **named: None)
        refused(EnvironmentFault, left_run, tmp_path, **forked)
    folders = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert (folders == [first.folder.run_id]) is not is_killed
    fork = left_run(tmp_path, **forked)
    folders = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert folders == [first.folder.run_id, fork.folder.run_id]


def test_fork_takes_the_checkpoints_along(tmp_path: Path) -> None:
    first = left_run(tmp_path, step=4)
    (first.folder.checkpoints / "step-8.broken").mkdir()
    fork = left_run(tmp_path, config=config(optimizer__lr=0.2), intent="fork")
    assert fork.folder != first.folder
    assert {path.name for path in fork.folder.checkpoints.iterdir()} == {"step-4"}
    assert fork.folder.read()["forked_from"] == first.folder.run_id


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"resume": "never"}, "wrong-type"),
        ({"new": 1}, "wrong-type"),
        ({"fork": True, "new": True}, "contradiction"),
        ({"extend": True, "fork": True}, "contradiction"),
        ({"extend": True, "new": True}, "contradiction"),
    ],
)
def test_what_is_asked_for_is_one_thing_and_a_boolean(given: dict[str, Any], code: str) -> None:
    assert [problem.code for problem in refused(ConfigError, intent_of, **given).problems] == [code]


def test_resume_starts_no_new_run(tmp_path: Path) -> None:
    for status in (None, "finished"):
        if status is not None:
            left_run(tmp_path, status=status)
        (problem,) = refused(ConfigError, left_run, tmp_path, intent="resume").problems
        assert (problem.code, problem.key) == ("resume", "name")
    home = tmp_path / "interrupted"
    interrupted = left_run(home, status="interrupted")
    changed = config(optimizer__lr=0.2)
    (problem,) = refused(ConfigError, left_run, home, config=changed, intent="resume").problems
    assert problem.key == "optimizer.lr"  # although nothing was saved
    resumed = left_run(home, intent="resume")
    assert (resumed.resumed, resumed.folder) == (True, interrupted.folder)


def test_there_is_nothing_to_fork_once_the_newest_run_is_finished(tmp_path: Path, golden: Golden) -> None:
    first = left_run(tmp_path, intent="fork", status="finished")  # the first of its name
    (problem,) = refused(ConfigError, left_run, tmp_path, config=config(optimizer__lr=0.2), intent="fork").problems
    assert (problem.code, problem.key) == ("nothing-to-fork", "name")
    golden(str(problem).replace(first.folder.run_id, "<id>"))


@pytest.mark.parametrize(
    ("changes", "is_reported"),
    [
        ({"trainer__epochs": 7}, True),
        ({"optimizer__lr": 0.2, "seed": 3}, True),
        ({"optimizer__lr": 0.2, "intent": "new"}, False),
        ({"scaling__num_workers": 2, "tracking__experiment": "other"}, False),
        ({}, False),
    ],
)
def test_another_config_than_that_of_a_finished_run_is_reported_to_start_from_scratch(
    tmp_path: Path, changes: dict[str, Any], is_reported: bool, golden: Golden
) -> None:
    first = left_run(tmp_path, status="finished")
    told: list[str] = []
    intent = changes.get("intent", "continue")
    changes = {key: value for key, value in changes.items() if key != "intent"}
    assert not left_run(tmp_path, config=config(**changes), intent=intent, warn=told.append).resumed
    assert len(told) == is_reported
    for message in told:
        golden(message.replace(first.folder.run_id, "<id>"))


def test_one_at_a_time(tmp_path: Path, golden: Golden) -> None:
    run = claim_run(config(), tmp_path)
    refusal = refused(EnvironmentFault, claim_run, config(), tmp_path)
    assert (refusal.code, refusal.fields["name"]) == ("run-in-use", "run")
    golden(str(refusal))
    run.release()
    claim_run(config(), tmp_path).release()


def test_a_lock_that_is_removed_before_it_is_taken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command that was refused removes its own, new folder."""
    taken = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        monkeypatch.undo()
        shutil.rmtree(tmp_path / "run")
        taken(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    run = claim_run(config(), tmp_path)
    refused(EnvironmentFault, claim_run, config(), tmp_path)
    run.release()
