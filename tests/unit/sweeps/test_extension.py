"""`sweep --extend`: ids of kept and of new trials, what is refused, and how an unfinished extension is continued."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.sweeps.extension import add_new_keys, claim_extension, earlier_sections
from paceline.sweeps.planning.dry_run import dry_run
from paceline.sweeps.planning.planned_trials import TrialNumbers, plan_trials, section_of
from paceline.sweeps.sweep_folder import SWEEPS, SweepFolder, claim_sweep
from paceline.sweeps.sweep_log import SweepLog, read_log, trial_entry
from paceline.sweeps.trial import Trial
from support.sweeps.configs import sweep_config
from support.sweeps.finished import leave_sweep

GRID: dict[str, Any] = {"optimizer.lr": [0.1, 0.2]}
RANDOM: dict[str, Any] = {"search": "random", "num_samples": 3}
OPTUNA: dict[str, Any] = {"search": "optuna", "num_samples": 3}
LR = {"optimizer.lr": {"uniform": [0.1, 0.2]}}


def config_of(space: dict[str, Any] | None = None, **fields: Any) -> ExperimentConfig:
    return sweep_config(GRID if space is None else space, **fields)


def points_of(*configs: ExperimentConfig) -> dict[str, dict[str, Any]]:
    """Return the trials of the last config by id, where the sweep had those before it at first and was extended."""
    earlier: Sequence[SweepConfig] = [section_of(config) for config in configs[:-1]]
    made = plan_trials(configs[-1], earlier)
    assert [point.id for point in made.planned_trials] == sorted(point.id for point in made.planned_trials)
    return {point.id: dict(point.params) for point in made.planned_trials}


def finished(storage: Path, config: ExperimentConfig) -> SweepFolder:
    """Leave a finished sweep all of whose trials have ended."""
    trials = [Trial(id, params, "finished") for id, params in points_of(config).items()]
    folder = leave_sweep(config, storage, trials=tuple(trials))
    folder.trials.mkdir(exist_ok=True)
    (folder.trials / "0000").mkdir()
    return folder


def extended(storage: Path, config: ExperimentConfig) -> ClaimedRun[SweepFolder]:
    """Claim an extension, and release it as a process that was killed would."""
    claimed = claim_extension(config, storage)
    claimed.release()
    return claimed


def refused(storage: Path, config: ExperimentConfig) -> list[Problem]:
    """Return the problems for which a sweep cannot be extended; its file stays as it was."""
    files = sorted(storage.glob("run/*/sweep.json"))
    before = [file.read_bytes() for file in files]
    with pytest.raises(ConfigError) as caught:
        extended(storage, config)
    assert [file.read_bytes() for file in files] == before
    return list(caught.value.problems)


# Ids


def test_numbers_of_trials_that_were_there_stay() -> None:
    first, then = TrialNumbers([(2, 2)]), TrialNumbers([(2, 2), (3, 2), (3, 3)])
    places = [(point, seed) for point in range(2) for seed in range(2)]
    assert [then.id_of(*place) for place in places] == [first.id_of(*place) for place in places]
    assert [then.place_of(f"{number:04d}") for number in range(4, 9)] == [(2, 0), (2, 1), (0, 2), (1, 2), (2, 2)]
    assert all(then.id_of(*then.place_of(f"{number:04d}")) == f"{number:04d}" for number in range(9))


FEWER: dict[str, Any] = {"trainer.epochs": [1], "optimizer.lr": [0.1, 0.2]}
MORE: dict[str, Any] = {"optimizer.lr": [0.4, 0.1, 0.2], "trainer.epochs": [1, 2]}


@pytest.mark.parametrize(
    ("before", "after", "axes", "kept", "new"),
    [
        (FEWER, config_of(MORE), ("optimizer.lr", "trainer.epochs"), (1, 1), [(0.4, 1), (0.4, 2), (0.1, 2), (0.2, 2)]),
        (GRID, config_of(seeds=3), ("optimizer.lr", "seed"), (0, 0), [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]),
        (  # the trials of the smaller grid have the config's own momentum, 0.9
            GRID,
            config_of({"optimizer.momentum": [0.5, 0.9], "optimizer.lr": [0.1, 0.2, 0.4]}),
            ("optimizer.lr", "optimizer.momentum"),
            (0.9, 0.9),
            [(0.1, 0.5), (0.2, 0.5), (0.4, 0.5), (0.4, 0.9)],
        ),
    ],
    ids=["values", "seeds", "axis"],
)
def test_new_trials_of_a_grid_follow_the_old_ones(
    before: dict[str, Any], after: ExperimentConfig, axes: tuple[str, ...], kept: tuple[Any, Any], new: list[Any]
) -> None:
    found = points_of(config_of(before), after)
    assert [tuple(own[axis] for axis in axes) for own in found.values()] == [*zip((0.1, 0.2), kept, strict=True), *new]


def test_a_grid_that_is_extended_twice_has_the_trials_of_one_that_was_extended_once() -> None:
    once = points_of(config_of(FEWER), config_of(MORE))
    twice = points_of(config_of(FEWER), config_of({**FEWER, "trainer.epochs": [1, 2]}), config_of(MORE))
    assert {str(sorted(own.items())) for own in twice.values()} == {str(sorted(own.items())) for own in once.values()}
    assert [own["optimizer.lr"] for own in twice.values()] == [0.1, 0.2, 0.1, 0.2, 0.4, 0.4]


def test_further_samples_are_those_that_would_have_been_drawn_at_once() -> None:
    before, larger = config_of(LR, **RANDOM), config_of(LR, **{**RANDOM, "num_samples": 5})
    assert points_of(before, larger) == points_of(larger)
    wide = config_of({"optimizer.lr": {"uniform": [0.1, 0.9]}}, search="random", num_samples=40)
    found = points_of(before, wide)
    assert list(found.values()) == [*points_of(before).values(), *list(points_of(wide).values())[3:]]
    assert max(own["optimizer.lr"] for own in found.values()) > 0.2


def test_skipped_points_keep_their_ids_too() -> None:
    space = {"data.global_batch_size": [64, 100], "trainer.gradient_accumulation_steps": [8]}
    base = {"data": {"name": "synthetic", "global_batch_size": 64}}
    old = sweep_config(space, base, invalid="skip")
    new = sweep_config({**space, "data.global_batch_size": [32, 64, 100]}, base, invalid="skip")
    made = plan_trials(new, [section_of(old)])
    assert [(trial.id, trial.params["data.global_batch_size"]) for trial in made.skipped] == [("0001", 100)]
    assert [(point.id, point.params["data.global_batch_size"]) for point in made.planned_trials] == [
        ("0000", 64),
        ("0002", 32),
    ]


# Which sweep


@pytest.mark.parametrize("intent", ["continue", "resume"])
def test_a_finished_sweep_is_extended_in_its_own_folder_and_continued_when_it_was_killed(
    tmp_path: Path, intent: Any
) -> None:
    folder, earlier = finished(tmp_path, config_of()), (section_of(config_of()),)
    larger = config_of({"optimizer.lr": [0.1, 0.2, 0.4]})
    for _ in range(2):
        claimed = extended(tmp_path, larger)
        assert (claimed.folder.path, claimed.resumed, folder.earlier) == (folder.path, True, earlier)
    content = folder.read()
    assert (content["status"], content["config"]) == ("running", json.loads(json.dumps(larger.model_dump(mode="json"))))
    again = claim_sweep(larger, tmp_path, intent)
    again.release()
    assert (again.folder.path, again.resumed) == (folder.path, True)
    known = {each: earlier_sections(larger, tmp_path / "run", each) for each in ("extend", intent, "new")}
    assert known == {"extend": earlier, intent: earlier, "new": ()}


def test_an_extension_is_extended_and_the_next_sweep_of_the_name_knows_nothing_of_it(tmp_path: Path) -> None:
    folder = finished(tmp_path, config_of())
    extended(tmp_path, config_of(seeds=2))
    extended(tmp_path, config_of(seeds=3))  # before the first extension has finished
    folder.write(status="finished")
    last = config_of({"optimizer.lr": [0.1, 0.2, 0.4]}, seeds=3)
    extended(tmp_path, last)
    assert [section.seeds for section in folder.earlier] == [1, 2, 3]
    assert len(plan_trials(last, folder.earlier).planned_trials) == 9
    folder.write(status="finished")
    assert earlier_sections(last, tmp_path / "run", "continue") == ()
    fresh = claim_sweep(last, tmp_path)
    fresh.release()
    assert (fresh.resumed, fresh.folder.earlier) == (False, ())


def test_weights_that_the_sweep_has_pinned_are_kept(tmp_path: Path) -> None:
    base = {"model": {"name": "mlp", "weights": "other/1"}}
    finished(tmp_path, sweep_config(GRID, base))
    asked = sweep_config({"optimizer.lr": [0.1, 0.2, 0.4]}, {"model": {"name": "mlp", "weights": "other"}})
    known = SWEEPS.last(tmp_path / "run")
    assert known is not None
    with pytest.raises(ConfigError):  # there are no such weights; the name is the one that was pinned
        SWEEPS.with_weights(asked, tmp_path / "run", "extend")
    assert [problem.key for problem in refused(tmp_path, asked)] == ["model.weights"]


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    folder = finished(tmp_path, config_of())
    folder.write(extended=[{"space": {}}])
    with pytest.raises(EnvironmentFault) as caught:
        extended(tmp_path, config_of(seeds=2))
    assert caught.value.code == "run-file-damaged"


# What is refused


def test_there_has_to_be_a_finished_sweep(tmp_path: Path, golden: Any) -> None:
    [missing] = refused(tmp_path, config_of())
    leave_sweep(config_of(), tmp_path, status="interrupted")
    [unfinished] = refused(tmp_path, config_of(seeds=2))
    assert {missing.code, unfinished.code} == {"nothing-to-extend"}
    run_id = next((tmp_path / "run").glob("*/")).name
    golden("\n".join(map(str, (missing, unfinished))).replace(run_id, "<sweep>"))


def rates(values: Any) -> dict[str, Any]:
    return {"sweep.space": {"optimizer.lr": values}}


STEPS: dict[str, Any] = {"optimizer.lr": {"quniform": [0.1, 0.5, 0.1]}}
NAMES: dict[str, Any] = {"optimizer.name": ["sgd", "adamw"]}
WITH_MOMENTUM: dict[str, Any] = {**LR, "optimizer.momentum": [0.9, 0.5]}
NINE = {"sweep.num_samples": 9}


@pytest.mark.parametrize(
    ("space", "fields", "changes", "code", "key"),
    [
        # trials would not belong to the sweep any more
        (GRID, {}, {"optimizer.momentum": 0.5}, "extend", "optimizer.momentum"),
        (GRID, {}, {"trainer.epochs": 7}, "extend", "trainer.epochs"),
        (GRID, {}, {"sweep.metric": "val/accuracy"}, "extend", "sweep.metric"),
        (GRID, {}, {"sweep.constraints": {"val/loss": "< 1"}}, "extend", "sweep.constraints.val/loss"),
        (GRID, {}, rates([0.1, 0.4, 0.5]), "extend", "sweep.space.optimizer.lr"),
        (GRID, {}, {"sweep.space": {**GRID, "trainer.epochs": [7, 8]}}, "extend", "sweep.space.trainer.epochs"),
        (NAMES, {}, {"sweep.space": {**NAMES, **GRID}}, "extend", "sweep.space.optimizer.lr"),
        (LR, RANDOM, {"sweep.space": WITH_MOMENTUM, **NINE}, "extend", "sweep.space.optimizer.momentum"),
        ({**GRID, "trainer.epochs": [1]}, {}, {"sweep.space": GRID}, "extend", "sweep.space.trainer.epochs"),
        (GRID, {"seeds": 3}, {"sweep.seeds": 2}, "extend", "sweep.seeds"),
        (LR, RANDOM, {"sweep.num_samples": 2}, "extend", "sweep.num_samples"),
        (LR, RANDOM, rates([0.1, 0.2]), "extend", "sweep.space.optimizer.lr"),
        (LR, RANDOM, rates({"loguniform": [0.1, 0.2]}), "extend", "sweep.space.optimizer.lr"),
        (LR, RANDOM, rates({"uniform": [0.1, 0.19]}), "extend", "sweep.space.optimizer.lr"),
        (LR, OPTUNA, rates({"uniform": [0.11, 0.3]}), "extend", "sweep.space.optimizer.lr"),
        (LR, RANDOM, {"sweep.search": "optuna", **NINE}, "extend", "sweep.search"),
        (GRID, {"scheduler": "pbt"}, rates([0.1, 0.2, 0.4]), "extend", "sweep.scheduler"),
        (STEPS, RANDOM, {**rates({"quniform": [0.05, 0.55, 0.1]}), **NINE}, "extend", "sweep.space.optimizer.lr"),
        # there are no more trials
        (GRID, {}, {}, "nothing-to-extend", "sweep.space"),
        (GRID, {}, rates([0.2, 0.1]), "nothing-to-extend", "sweep.space"),
        (LR, RANDOM, rates({"uniform": [0.1, 0.4]}), "nothing-to-extend", "sweep.num_samples"),
    ],
)
def test_an_extension_that_drops_trials_or_adds_none_is_refused(
    tmp_path: Path, space: dict[str, Any], fields: dict[str, Any], changes: dict[str, Any], code: str, key: str
) -> None:
    config = config_of(space, **fields)
    leave_sweep(config, tmp_path)
    [problem] = refused(tmp_path, config.with_overrides(changes))
    assert (problem.code, problem.key) == (code, key)
    assert problem.hint


def test_the_messages_name_both_values(tmp_path: Path, golden: Any) -> None:
    leave_sweep(config_of(), tmp_path)
    space = {"optimizer.lr": [0.1, 0.4], "trainer.epochs": [7, 8]}
    problems = refused(tmp_path, config_of(space).with_overrides({"optimizer.momentum": 0.5}))
    run_id = next((tmp_path / "run").glob("*/")).name
    golden("\n".join(sorted(map(str, problems))).replace(run_id, "<sweep>"))


@pytest.mark.parametrize(
    ("space", "fields", "changes"),
    [
        (GRID, {}, {**rates([0.4, 0.2, 0.1]), "sweep.slots": 2}),
        (GRID, {}, {"sweep.space": {**GRID, "optimizer.momentum": [0.9, 0.5]}}),
        (GRID, {}, {"sweep.seeds": 2, "sweep.stop": {"wall_seconds": 60}}),
        (LR, OPTUNA, {**rates({"uniform": [0.05, 0.2]}), **NINE}),
        (STEPS, RANDOM, {**rates({"quniform": [0.0, 0.7, 0.1]}), **NINE}),
        ({"seed": {"randint": [2, 4]}}, RANDOM, {"sweep.space": {"seed": {"randint": [1, 9]}}, **NINE}),
    ],
)
def test_more_of_anything_is_accepted(
    tmp_path: Path, space: dict[str, Any], fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    config = config_of(space, **fields)
    folder = leave_sweep(config, tmp_path)
    assert extended(tmp_path, config.with_overrides(changes)).folder.path == folder.path


# Seeds and dry runs


@pytest.mark.parametrize(
    ("larger", "is_grid", "new"),
    [
        (config_of(), True, {}),
        (
            config_of({**GRID, "optimizer.momentum": [0.5, 0.9]}, seeds=2).with_overrides({"seed": 5}),
            True,
            {"optimizer.momentum": 0.9, "seed": 5},
        ),
        (config_of(LR, **{**OPTUNA, "seeds": 2}), False, {"seed": 0}),
    ],
    ids=["none", "grid", "optuna"],
)
def test_finished_trials_get_the_keys_that_are_varied_now(
    tmp_path: Path, larger: ExperimentConfig, is_grid: bool, new: dict[str, Any]
) -> None:
    log = SweepLog(tmp_path)
    log.append([trial_entry(Trial("0000", {"optimizer.lr": 0.1}, "finished", weights_sha256="ab"))])
    log.close()
    size = (tmp_path / "log.jsonl").stat().st_size
    for _ in range(2):
        add_new_keys(tmp_path, larger, plan_trials(larger, [section_of(config_of())] if is_grid else []))
    trial = read_log(tmp_path).trials["0000"]
    assert trial.params == {"optimizer.lr": 0.1, **new}
    assert (trial.state, trial.weights_sha256) == ("finished", "ab")
    assert new or (tmp_path / "log.jsonl").stat().st_size == size


def test_a_dry_run_shows_the_new_trials_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_STORAGE", str(tmp_path / "runs"))
    folder = finished(tmp_path / "runs", config_of())
    dry_run(config_of({"optimizer.lr": [0.4, 0.1, 0.2]}), as_json=True, intent="extend")
    found = json.loads(capsys.readouterr().out)
    assert [(point["id"], point["params"]) for point in found["trials"]] == [("0002", {"optimizer.lr": 0.4})]
    assert (found["num_trials"], found["extended"]) == (1, {"sweep_id": folder.run_id, "kept": 2})
    dry_run(config_of(seeds=2), as_json=False, intent="extend")
    assert folder.run_id in capsys.readouterr().out
