"""The points of a sweep: their order and numbers, what is drawn, and what is refused or skipped."""

import warnings
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import ExperimentConfig
from paceline.config.overrides import ConfigWarning
from paceline.errors import ConfigError, Problem
from paceline.sweeps.planning.planned_trials import PlannedTrials, plan_trials, trial_config
from paceline.sweeps.planning.valley import WIDTH
from support.sweeps.configs import sweep_config

BASE: dict[str, Any] = {"model": {"name": "cnn"}, "data": {"name": "mnist5k", "global_batch_size": 64}}
UNEVEN = {"data.global_batch_size": [64, 96, 100], "scaling.num_workers": [1, 3]}
"""64 and 100 do not divide by 3."""
OPTUNA = {"search": "optuna", "num_samples": 5}
SKIP = {"invalid": "skip"}


def config_of(space: dict[str, Any], base: dict[str, Any] | None = None, **section: Any) -> ExperimentConfig:
    return sweep_config(space, {**BASE, **(base or {})}, **section)


def points_of(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> PlannedTrials:
    return plan_trials(config_of(space, base, **fields))


def settings_of(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> list[tuple[Any, ...]]:
    return [tuple(point.params.values()) for point in points_of(space, base, **fields).planned_trials]


def refused(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> list[Problem]:
    """The problems for which the points of a valid config are refused."""
    config = config_of(space, base, **fields)
    with pytest.raises(ConfigError) as caught:
        plan_trials(config)
    assert {problem.code for problem in caught.value.problems} == {"sweep-trial"}
    keys = {"sweep.space", *(f"sweep.space.{axis}" for axis in space)}
    assert {problem.key for problem in caught.value.problems} <= keys
    return list(caught.value.problems)


def test_grid_has_the_order_of_its_axes() -> None:
    made = points_of({"optimizer.lr": [0.2, 0.1], "trainer.epochs": [1, 2]}, base={"seed": 5}, seeds=2)
    assert made.skipped == []
    assert [point.id for point in made.planned_trials] == [f"{number:04d}" for number in range(8)]
    assert [tuple(point.params.values()) for point in made.planned_trials] == [
        (rate, epochs, seed) for rate in (0.2, 0.1) for epochs in (1, 2) for seed in (5, 6)
    ]
    assert list(made.planned_trials[0].params) == ["optimizer.lr", "trainer.epochs", "seed"]
    assert made.planned_trials[1].setting == {"optimizer.lr": 0.2, "trainer.epochs": 1}
    assert points_of({"optimizer.lr": [0.1]}).planned_trials[0].params == {"optimizer.lr": 0.1}  # one seed is none


def test_points_of_the_same_workers_are_side_by_side() -> None:
    space = {"optimizer.lr": [0.2, 0.1], "scaling.num_workers": [2, 1], "trainer.epochs": [1, 2]}
    wanted = [(rate, workers, epochs) for workers in (2, 1) for rate in (0.2, 0.1) for epochs in (1, 2)]
    assert settings_of(space) == wanted
    sections = {"seed": [1, 2], "scaling": [{"num_workers": 2}, {"num_workers": 1}]}
    assert [section["num_workers"] for _, section in settings_of(sections)] == [2, 2, 1, 1]


def test_more_drawn_points_begin_with_the_same_and_their_seeds_share_their_values() -> None:
    space = {"optimizer.lr": {"loguniform": [1e-3, 1]}, "trainer.epochs": [1, 2, 3], "seed": {"randint": [0, 9]}}
    few, many = (settings_of(space, search="random", num_samples=number) for number in (5, 50))
    assert many[:5] == few != settings_of(space, base={"seed": 1}, search="random", num_samples=5)
    assert {epochs for _, epochs, _ in many} == {1, 2, 3}
    assert all(1e-3 <= lr <= 1 and 0 <= seed < 9 for lr, _, seed in many)
    points = points_of({"optimizer.lr": {"uniform": [0.1, 1]}}, search="random", num_samples=2, seeds=3).planned_trials
    assert [point.params["seed"] for point in points] == [0, 1, 2, 0, 1, 2]
    assert points[0].setting == points[2].setting != points[3].setting


FP16 = {"trainer.precision": ["16-mixed", "32-true"], "optimizer.lr": [0.1, 0.2, 0.3]}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "points that disagree": (UNEVEN, {}, ["", ""]),
    "all points": ({"data.global_batch_size": [100], "scaling.num_workers": [3]}, SKIP, [""]),
    "inner list": ({"optimizer.lr": [0.1, [0.2, 0.3]], "seed": [1, 2]}, {}, ["optimizer.lr"]),
    "bound": ({"trainer.epochs": [1, -1], "seed": [1, 2]}, {}, ["trainer.epochs"]),
    "choice": ({"trainer.precision": ["32-true", "bf16"], "seed": [1, 2]}, {}, ["trainer.precision"]),
    "fields of some components": ({"optimizer.name": ["sgd", "adamw"], "optimizer.beta1": [0.5, 0.9]}, {}, [""]),
    "same reason": (FP16, {"base": {"scaling": {"use_gpu": False}}}, [""]),
    "no step": (
        {"data.global_batch_size": [4000, 4001]},
        {"base": {"data": {"name": "mnist5k", "drop_last": True}}},
        [""],
    ),
    "missing module": ({"model.path": ["no_such_package.nets:build"]}, {}, ["model.path"]),
    "bounds for optuna": (
        {"optimizer.lr": {"uniform": [0, 1]}, "optimizer.momentum": [0.5, 1.5]},
        OPTUNA,
        ["optimizer.lr", "optimizer.momentum"],
    ),
    "axis for optuna": (
        {"optimizer.momentum": [1.5, 2.5], "optimizer.lr": [0.1, -1]},
        {**OPTUNA, **SKIP},
        ["optimizer.momentum"] * 2,
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_points_are_refused_reason_by_reason(kind: str, golden: Any) -> None:
    """A value that is wrong by itself is reported at its axis; one that only disagrees with others, at the space."""
    space, fields, axes = REFUSED[kind]
    problems = refused(space, **fields)
    wanted = [".".join(filter(None, ("sweep.space", axis))) for axis in axes]
    assert [problem.key for problem in problems] == wanted
    if kind != "missing module":  # which names folders
        golden("\n".join(str(problem) for problem in problems))


def test_many_invalid_drawn_points_are_one_problem_or_keep_their_numbers() -> None:
    axis = "optimizer.momentum"
    drawn: dict[str, Any] = {"search": "random", "num_samples": 60}
    assert len(refused({axis: {"uniform": [-1, 0.5]}}, **drawn)) == 1  # although their numbers differ
    made = points_of({axis: {"uniform": [-1, 0.5]}}, **drawn, **SKIP)
    assert sorted(int(each.id) for each in (*made.planned_trials, *made.skipped)) == list(range(60))
    assert {point.params[axis] >= 0 for point in made.planned_trials} == {True}
    assert {trial.params[axis] >= 0 for trial in made.skipped} == {False}


def test_invalid_points_are_skipped_on_demand_with_each_of_their_seeds() -> None:
    made = points_of(UNEVEN, seeds=2, **SKIP)
    settings = [(64, 1), (96, 1), (100, 1), (64, 3), (96, 3), (100, 3)]
    numbered = dict(enumerate((*setting, seed) for setting in settings for seed in (0, 1)))
    skipped = {number: numbered.pop(number) for number in (6, 7, 10, 11)}
    assert {int(trial.id): tuple(trial.params.values()) for trial in made.skipped} == skipped
    assert {int(point.id): tuple(point.params.values()) for point in made.planned_trials} == numbered
    assert {trial.state for trial in made.skipped} == {"skipped"}
    assert made.skipped[0].reason.startswith("data.global_batch_size: 64 ")


def test_point_with_too_few_data_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 200)
    data = {"name": "text_file", "file": str(tmp_path / "text")}
    base = {"model": {"name": "gpt"}, "task": {"name": "language_modeling"}, "data": data}
    made = points_of({"data.validation_fraction": [0.1, 1e-6]}, base=base, **SKIP)
    assert [point.params for point in made.planned_trials] == [{"data.validation_fraction": 0.1}]
    assert len(made.skipped) == 1


OWN = {"path": "support.sweeps.user_code:build_net", "args": {"width": 8}}


@pytest.mark.parametrize(
    "space",
    [
        {"model.args.widht": [16, 32]},
        {"model.args": [{"widht": 16}, {"width": 16}]},
        {"model": [OWN, {**OWN, "args": {}}]},
        {"model.path": [OWN["path"], "support.sweeps.user_code:build_other_net"]},
    ],
)
def test_arguments_that_user_code_does_not_take_are_refused(space: dict[str, Any], golden: Any) -> None:
    golden("\n".join(str(problem) for problem in refused(space, base={"model": OWN})))
    assert refused(space, base={"model": OWN}, **OPTUNA)


def test_config_without_a_sweep_has_no_points(golden: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_trials(config_of({"seed": [1, 2]}).with_overrides({"sweep": None}))
    [problem] = caught.value.problems
    assert (problem.code, problem.key) == ("sweep", "sweep")
    golden(str(problem))


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        ({"optimizer.lr": {"loguniform": [1e-3, 1]}, "data.global_batch_size": [64, 128]}, {}),
        ({"data.global_batch_size": [63, 66], "scaling.num_workers": [3, 1]}, {}),  # right beside others
        ({"optimizer.lr": {"uniform": [0, 1]}, "optimizer.momentum": [0.5, 1.5]}, SKIP),
        ({"optimizer.name": ["sgd", "adamw"], "optimizer.beta1": [0.5, 0.9]}, SKIP),
    ],
)
def test_optuna_makes_no_points_in_advance(space: dict[str, Any], fields: dict[str, Any]) -> None:
    assert points_of(space, **OPTUNA, **fields) == PlannedTrials([], [])


def test_switching_a_component_warns_once() -> None:
    base = {"optimizer": {"name": "sgd", "momentum": 0.5}}
    config = config_of({"optimizer.name": ["sgd", "adamw"], "optimizer.lr": [0.1, 0.2, 0.3]}, base=base)
    with pytest.warns(ConfigWarning, match="momentum") as caught:
        made = plan_trials(config)
    assert [warning.filename for warning in caught] == [__file__]
    assert len(made.planned_trials) == 6
    with warnings.catch_warnings(action="error"):
        optimizer = trial_config(config, made.planned_trials[-1].params).optimizer
    assert optimizer.model_dump(include={"name", "lr"}) == {"name": "adamw", "lr": 0.3}


def test_config_of_a_trial_has_its_overrides_and_no_sweep() -> None:
    config = config_of({"model": [{"name": "mlp"}, {"name": "cnn"}], "optimizer.lr": [0.5]})
    trial = trial_config(config, plan_trials(config).planned_trials[0].params)
    assert trial.sweep is None
    assert (trial.model.describe(), trial.optimizer.lr, trial.name) == ("mlp", 0.5, "run")
    assert trial == config.with_overrides({"model": {"name": "mlp"}, "optimizer.lr": 0.5, "sweep": None})
    with pytest.raises(ConfigError):
        trial_config(config, {"optimizer.lr": -1})


# `search: scale`: settings around the learning rate that the rule expects for each batch size

SIZES = [32, 64, 128]


def scale_settings(optimizer: dict[str, Any], samples: int = 30, **space: Any) -> list[dict[str, Any]]:
    whole = {"data.global_batch_size": SIZES, "optimizer.lr": {"loguniform": [1e-6, 1e3]}, **space}
    base = {"data": {"name": "mnist5k", "global_batch_size": 32}, "optimizer": {"lr": 0.02, **optimizer}}
    made = points_of(whole, base, search="scale", num_samples=samples, seeds=1)
    return [dict(planned_trial.params) for planned_trial in made.planned_trials]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ({"name": "sgd"}, lambda ratio: 0.02 * ratio),
        ({"name": "adamw"}, lambda ratio: 0.02 * sqrt(ratio)),
        ({"name": "sgd", "lr_scaling": "linear", "base_batch_size": 32}, lambda ratio: 0.02),
    ],
    ids=["sgd", "adamw", "scaled by the optimizer"],
)
def test_learning_rates_lie_on_both_sides_of_the_rule(optimizer: dict[str, Any], expected: Any) -> None:
    found = scale_settings(optimizer)
    for size in SIZES:
        rates = [each["optimizer.lr"] for each in found if each["data.global_batch_size"] == size]
        assert len(rates) == 10
        offsets = [log(rate / expected(size / 32)) / log(WIDTH) for rate in rates]
        assert offsets[0] == pytest.approx(0.0, abs=1e-9)
        assert max(map(abs, offsets)) <= 1
        # evenly: none of ten equal parts but a few is without one
        assert len({int(5 * (offset + 1)) for offset in offsets}) >= 7


def test_more_settings_along_the_rule_begin_with_the_same_and_keep_the_range() -> None:
    few, many = (scale_settings({"name": "sgd"}, number, **{"trainer.epochs": [1, 2]}) for number in (5, 40))
    assert many[:5] == few
    assert {each["trainer.epochs"] for each in many} == {1, 2}
    narrow = scale_settings({"name": "sgd"}, **{"optimizer.lr": {"loguniform": [0.03, 0.05]}})
    assert all(0.03 <= each["optimizer.lr"] <= 0.05 for each in narrow)
