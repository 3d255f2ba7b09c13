"""Which sweep a command resumes, and what stands in its way."""

from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.train import record_params
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, claim_run
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.sweep_folder import SweepFolder, claim_sweep
from support.sweeps.configs import sweep_config


def config(**changes: Any) -> ExperimentConfig:
    return sweep_config().with_overrides({key.replace("__", "."): value for key, value in changes.items()})


def claimed(
    storage: Path, changes: dict[str, Any] | None = None, leaves: str = "", intent: Intent = "continue"
) -> ClaimedRun[SweepFolder]:
    """Claim, leave `trials` or a status as a sweep would, and release."""
    found = claim_sweep(config(**(changes or {})), storage, intent)
    if leaves:
        (found.folder.trials / "0000").mkdir(parents=True, exist_ok=True)
        found.folder.write(status="running" if leaves == "trials" else leaves)
    found.release()
    return found


def refused(storage: Path, changes: dict[str, Any] | None = None, **options: Any) -> tuple[Problem, ...]:
    """The problems of a claim that is refused."""
    with pytest.raises(ConfigError) as caught:
        claimed(storage, changes, **options)
    return caught.value.problems


def test_unfinished_sweep_is_resumed_and_a_finished_one_is_not(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    again = [claimed(tmp_path, leaves=left, intent="resume") for left in ("trials", "interrupted", "")]
    touches_no_trial = {"sweep__slots": 2, "sweep__max_failures_per_trial": 0, "sweep__stop": {"wall_seconds": 60}}
    again.append(claimed(tmp_path, {**touches_no_trial, "tracking__experiment": "other"}))
    assert {each.folder for each in again} == {first.folder}
    assert first.folder.read()["status"] == "running"
    second = claimed(tmp_path, leaves="finished")
    third = claimed(tmp_path)
    assert (first.resumed, second.resumed, third.resumed) == (False, True, False)
    assert second.folder == first.folder != third.folder
    assert first.folder.path.parent == tmp_path / "run"


def test_new_leaves_the_unfinished_one_alone(tmp_path: Path) -> None:
    first = claimed(tmp_path, leaves="interrupted")
    second = claimed(tmp_path, {"optimizer__momentum": 0.5}, intent="new")
    assert not second.resumed
    assert second.folder != first.folder
    assert first.folder.read()["status"] == "interrupted"


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path: Path, golden: Any) -> None:
    claimed(tmp_path, {"trainer__epochs": 2}, leaves="trials")
    changes = {
        "trainer__epochs": 1,
        "sweep__space": {"optimizer.lr": [0.1, 0.4]},
        "sweep__seeds": 2,
        "optimizer__momentum": 0.5,
    }
    problems = refused(tmp_path, changes)
    keys = {"trainer.epochs", "sweep.space.optimizer.lr", "sweep.seeds", "optimizer.momentum"}
    assert {problem.key for problem in problems} == keys
    run_id = next((tmp_path / "run").glob("*/")).name
    golden("\n".join(str(problem) for problem in problems).replace(run_id, "<run-id>"))


def test_sweep_without_trials_is_not_resumed_with_another_config(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    assert [problem.key for problem in refused(tmp_path, {"sweep__seeds": 2}, intent="resume")] == ["sweep.seeds"]
    assert len(list((tmp_path / "run").glob("*/"))) == 1
    second = claimed(tmp_path, {"sweep__seeds": 2})
    assert not second.resumed
    assert second.folder != first.folder


def test_resume_starts_no_sweep(tmp_path: Path, golden: Any) -> None:
    [missing] = refused(tmp_path, intent="resume")
    golden(str(missing))
    claimed(tmp_path, leaves="finished")  # the name is free again
    assert refused(tmp_path, intent="resume") == (missing,)
    assert len(list((tmp_path / "run").glob("*/"))) == 1


def test_runs_and_sweeps_of_one_name_do_not_see_each_other(tmp_path: Path) -> None:
    sweep = claimed(tmp_path, leaves="trials")
    run = claim_run(config(optimizer__lr=0.5), tmp_path)
    (run.folder.checkpoints / "step-4").mkdir(parents=True)
    run.release()
    assert not run.resumed
    assert run.folder.path.parent == sweep.folder.path.parent
    assert claimed(tmp_path, intent="resume").folder == sweep.folder
    for changes in ({}, {"sweep__seeds": 3}, {"sweep": None}):  # whatever its config says about sweeps
        again = claim_run(config(optimizer__lr=0.5, **changes), tmp_path)
        again.release()
        assert (again.resumed, again.folder) == (True, run.folder)
    sweep.folder.write(status="finished")
    refused(tmp_path, intent="resume")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    first = claim_sweep(config(), tmp_path)
    for attempt in (lambda: claim_sweep(config(), tmp_path, "new"), lambda: claim_run(config(), tmp_path)):
        with pytest.raises(EnvironmentFault):
            attempt()
    first.release()
    claim_sweep(config(), tmp_path, "resume").release()


def test_record_of_a_run_has_no_sweep_section() -> None:
    for each in (config(), trial_config(config(), {"optimizer.lr": 0.2})):
        params = record_params(each, derive(each, None))
        assert "optimizer.lr" in params
        assert [key for key in params if key.partition(".")[0] == "sweep"] == []
