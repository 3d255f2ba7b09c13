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
from paceline.sweeps.sweep_log import SweepLog, read_log
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


def test_new_values_of_a_grid_follow_the_old_ones() -> None:
    more = {"optimizer.lr": [0.4, 0.1, 0.2], "trainer.epochs": [1, 2]}
    fewer = {"trainer.epochs": [1], "optimizer.lr": [0.1, 0.2]}
    found = points_of(config_of(fewer), config_of(more))
    assert [(own["optimizer.lr"], own["trainer.epochs"]) for own in found.values()] == [
        *[(0.1, 1), (0.2, 1)],
        *[(0.4, 1), (0.4, 2), (0.1, 2), (0.2, 2)],
    ]
    twice = points_of(config_of(fewer), config_of({**fewer, "trainer.epochs": [1, 2]}), config_of(more))
    assert {str(sorted(own.items())) for own in twice.values()} == {str(sorted(own.items())) for own in found.values()}
    assert [own["optimizer.lr"] for own in twice.values()] == [0.1, 0.2, 0.1, 0.2, 0.4, 0.4]


def test_more_seeds_of_the_same_points() -> None:
    found = points_of(config_of(), config_of(seeds=3))
    assert [(own["optimizer.lr"], own["seed"]) for own in found.values()] == [
        *[(0.1, 0), (0.2, 0)],
        *[(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)],
    ]


def test_a_larger_random_sweep_is_the_one_that_would_have_been_drawn_at_once() -> None:
    larger = config_of(LR, **{**RANDOM, "num_samples": 5})
    assert points_of(config_of(LR, **RANDOM), larger) == points_of(larger)


def test_samples_beyond_the_old_ones_are_drawn_from_the_wider_range() -> None:
    wide = config_of({"optimizer.lr": {"uniform": [0.1, 0.9]}}, search="random", num_samples=40)
    before, found = points_of(config_of(LR, **RANDOM)), points_of(config_of(LR, **RANDOM), wide)
    assert [found[id] for id in before] == list(before.values())
    assert [found[id] for id in list(found)[3:]] == list(points_of(wide).values())[3:]
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


def test_a_new_axis_of_a_grid_adds_its_other_values() -> None:
    """The trials of the smaller grid have the config's own momentum, 0.9."""
    wider = {"optimizer.momentum": [0.5, 0.9], "optimizer.lr": [0.1, 0.2, 0.4]}
    found = points_of(config_of(), config_of(wider))
    assert [(own["optimizer.lr"], own["optimizer.momentum"]) for own in found.values()] == [
        *[(0.1, 0.9), (0.2, 0.9)],
        *[(0.1, 0.5), (0.2, 0.5), (0.4, 0.5), (0.4, 0.9)],
    ]


# Which sweep


def test_a_finished_sweep_is_extended_in_its_own_folder(tmp_path: Path) -> None:
    folder = finished(tmp_path, config_of())
    larger = config_of({"optimizer.lr": [0.1, 0.2, 0.4]})
    claimed = extended(tmp_path, larger)
    assert (claimed.folder.path, claimed.resumed) == (folder.path, True)
    content = folder.read()
    assert (content["status"], content["config"]) == ("running", json.loads(json.dumps(larger.model_dump(mode="json"))))
    assert folder.earlier == (section_of(config_of()),)


@pytest.mark.parametrize("intent", ["continue", "resume"])
def test_an_extension_that_was_killed_is_continued(tmp_path: Path, intent: Any) -> None:
    folder = finished(tmp_path, config_of())
    larger = config_of({"optimizer.lr": [0.1, 0.2, 0.4]})
    extended(tmp_path, larger)
    assert extended(tmp_path, larger).folder.path == folder.path
    assert earlier_sections(larger, tmp_path / "run", "extend") == folder.earlier == (section_of(config_of()),)
    again = claim_sweep(larger, tmp_path, intent)
    again.release()
    assert (again.folder.path, again.resumed) == (folder.path, True)
    assert earlier_sections(larger, tmp_path / "run", intent) == folder.earlier
    assert earlier_sections(larger, tmp_path / "run", "new") == ()


def test_an_extension_is_extended_whether_it_has_finished_or_not(tmp_path: Path) -> None:
    folder = finished(tmp_path, config_of())
    extended(tmp_path, config_of(seeds=2))
    extended(tmp_path, config_of(seeds=3))
    folder.write(status="finished")
    last = config_of({"optimizer.lr": [0.1, 0.2, 0.4]}, seeds=3)
    extended(tmp_path, last)
    assert [section.seeds for section in folder.earlier] == [1, 2, 3]
    assert len(plan_trials(last, folder.earlier).planned_trials) == 9


def test_the_next_sweep_of_the_name_knows_nothing_of_the_extension(tmp_path: Path) -> None:
    folder = finished(tmp_path, config_of())
    extended(tmp_path, config_of(seeds=2))
    folder.write(status="finished")
    assert earlier_sections(config_of(seeds=2), tmp_path / "run", "continue") == ()
    fresh = claim_sweep(config_of(seeds=2), tmp_path)
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


@pytest.mark.parametrize(
    ("space", "fields", "changes", "key"),
    [
        (GRID, {}, {"optimizer.momentum": 0.5}, "optimizer.momentum"),
        (GRID, {}, {"trainer.epochs": 7}, "trainer.epochs"),
        (GRID, {}, {"sweep.metric": "val/accuracy"}, "sweep.metric"),
        (GRID, {}, {"sweep.constraints": {"val/loss": "< 1"}}, "sweep.constraints.val/loss"),
        (GRID, {}, {"sweep.space": {"optimizer.lr": [0.1, 0.4, 0.5]}}, "sweep.space.optimizer.lr"),
        (GRID, {}, {"sweep.space": {**GRID, "trainer.epochs": [7, 8]}}, "sweep.space.trainer.epochs"),
        (
            {"optimizer.name": ["sgd", "adamw"]},
            {},
            {"sweep.space": {"optimizer.name": ["sgd", "adamw"], "optimizer.lr": [0.1, 0.2]}},
            "sweep.space.optimizer.lr",
        ),
        (
            LR,
            RANDOM,
            {"sweep.space": {**LR, "optimizer.momentum": [0.9, 0.5]}, "sweep.num_samples": 9},
            "sweep.space.optimizer.momentum",
        ),
        ({**GRID, "trainer.epochs": [1]}, {}, {"sweep.space": GRID}, "sweep.space.trainer.epochs"),
        (GRID, {"seeds": 3}, {"sweep.seeds": 2}, "sweep.seeds"),
        (LR, RANDOM, {"sweep.num_samples": 2}, "sweep.num_samples"),
        (LR, RANDOM, {"sweep.space": {"optimizer.lr": [0.1, 0.2]}}, "sweep.space.optimizer.lr"),
        (LR, RANDOM, {"sweep.space": {"optimizer.lr": {"loguniform": [0.1, 0.2]}}}, "sweep.space.optimizer.lr"),
        (LR, RANDOM, {"sweep.space": {"optimizer.lr": {"uniform": [0.1, 0.19]}}}, "sweep.space.optimizer.lr"),
        (LR, OPTUNA, {"sweep.space": {"optimizer.lr": {"uniform": [0.11, 0.3]}}}, "sweep.space.optimizer.lr"),
        (LR, RANDOM, {"sweep.search": "optuna", "sweep.num_samples": 9}, "sweep.search"),
        (GRID, {"scheduler": "pbt"}, {"sweep.space": {"optimizer.lr": [0.1, 0.2, 0.4]}}, "sweep.scheduler"),
        (
            {"optimizer.lr": {"quniform": [0.1, 0.5, 0.1]}},
            RANDOM,
            {"sweep.space": {"optimizer.lr": {"quniform": [0.05, 0.55, 0.1]}}, "sweep.num_samples": 9},
            "sweep.space.optimizer.lr",
        ),
    ],
)
def test_trials_that_would_not_belong_to_the_sweep_any_more(
    tmp_path: Path, space: dict[str, Any], fields: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    config = config_of(space, **fields)
    leave_sweep(config, tmp_path)
    [problem] = refused(tmp_path, config.with_overrides(changes))
    assert (problem.code, problem.key) == ("extend", key)
    assert problem.hint


def test_the_messages_name_both_values(tmp_path: Path, golden: Any) -> None:
    leave_sweep(config_of(), tmp_path)
    space = {"optimizer.lr": [0.1, 0.4], "trainer.epochs": [7, 8]}
    problems = refused(tmp_path, config_of(space).with_overrides({"optimizer.momentum": 0.5}))
    run_id = next((tmp_path / "run").glob("*/")).name
    golden("\n".join(sorted(map(str, problems))).replace(run_id, "<sweep>"))


@pytest.mark.parametrize(
    ("space", "fields", "changes", "key"),
    [
        (GRID, {}, {}, "sweep.space"),
        (GRID, {}, {"sweep.space": {"optimizer.lr": [0.2, 0.1]}}, "sweep.space"),
        (LR, RANDOM, {"sweep.space": {"optimizer.lr": {"uniform": [0.1, 0.4]}}}, "sweep.num_samples"),
    ],
)
def test_an_extension_has_more_trials(
    tmp_path: Path, space: dict[str, Any], fields: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    config = config_of(space, **fields)
    leave_sweep(config, tmp_path)
    [problem] = refused(tmp_path, config.with_overrides(changes))
    assert (problem.code, problem.key) == ("nothing-to-extend", key)


@pytest.mark.parametrize(
    ("space", "fields", "changes"),
    [
        (GRID, {}, {"sweep.space": {"optimizer.lr": [0.4, 0.2, 0.1]}, "sweep.slots": 2}),
        (GRID, {}, {"sweep.space": {**GRID, "optimizer.momentum": [0.9, 0.5]}}),
        (GRID, {}, {"sweep.seeds": 2, "sweep.stop": {"wall_seconds": 60}}),
        (LR, OPTUNA, {"sweep.space": {"optimizer.lr": {"uniform": [0.05, 0.2]}}, "sweep.num_samples": 4}),
        (
            {"optimizer.lr": {"quniform": [0.1, 0.5, 0.1]}},
            RANDOM,
            {"sweep.space": {"optimizer.lr": {"quniform": [0.0, 0.7, 0.1]}}, "sweep.num_samples": 4},
        ),
        (
            {"trainer.epochs": {"randint": [2, 4]}},
            RANDOM,
            {"sweep.space": {"trainer.epochs": {"randint": [1, 9]}}, "sweep.num_samples": 4},
        ),
    ],
)
def test_more_of_anything_is_accepted(
    tmp_path: Path, space: dict[str, Any], fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    config = config_of(space, **fields)
    folder = leave_sweep(config, tmp_path)
    assert extended(tmp_path, config.with_overrides(changes)).folder.path == folder.path


# Seeds and dry runs


def test_finished_trials_get_the_keys_that_are_varied_now(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    log.trial(Trial("0000", {"optimizer.lr": 0.1}, "finished", weights_sha256="ab"))
    log.close()
    size = (tmp_path / "log.jsonl").stat().st_size
    add_new_keys(tmp_path, config_of(), plan_trials(config_of()))
    assert (tmp_path / "log.jsonl").stat().st_size == size
    larger = config_of({**GRID, "optimizer.momentum": [0.5, 0.9]}, seeds=2).with_overrides({"seed": 5})
    for _ in range(2):
        add_new_keys(tmp_path, larger, plan_trials(larger, [section_of(config_of())]))
    trial = read_log(tmp_path).trials["0000"]
    assert trial.params == {"optimizer.lr": 0.1, "optimizer.momentum": 0.9, "seed": 5}
    assert (trial.state, trial.weights_sha256) == ("finished", "ab")


def test_finished_trials_of_optuna_get_their_seed(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    log.trial(Trial("0000", {"optimizer.lr": 0.1}, "finished"))
    log.close()
    larger = config_of(LR, **{**OPTUNA, "seeds": 2})
    add_new_keys(tmp_path, larger, plan_trials(larger))
    assert read_log(tmp_path).trials["0000"].params == {"optimizer.lr": 0.1, "seed": larger.seed}


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
