"""The points of a sweep: their order and numbers, what is drawn, what is refused or skipped, and what they come to."""

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.config.overrides import ConfigWarning
from paceline.errors import ConfigError, Problem
from paceline.sweeps.planning import point_checks
from paceline.sweeps.planning.points import Points, make_points, trial_config
from paceline.sweeps.planning.preview import describe_points

TREE: dict[str, Any] = {
    "name": "run",
    "model": {"name": "cnn"},
    "data": {"name": "mnist5k", "global_batch_size": 64},
}
UNEVEN = {"data.global_batch_size": [64, 96, 100], "scaling.num_workers": [1, 3]}
"""64 and 100 do not divide by 3."""


def config_of(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> ExperimentConfig:
    """A config with a sweep; `fields` are those of its section, but for `space`, and `base` those of the rest."""
    return validate({**TREE, **(base or {}), "sweep": {"space": space, **fields}})


def points_of(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> Points:
    return make_points(config_of(space, base, **fields))


def refused(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> list[Problem]:
    """The problems for which the points of a valid config are refused."""
    config = config_of(space, base, **fields)
    with pytest.raises(ConfigError) as caught:
        make_points(config)
    assert {problem.code for problem in caught.value.problems} == {"sweep-point"}
    keys = {"sweep.space", *(f"sweep.space.{axis}" for axis in space)}
    assert {problem.key for problem in caught.value.problems} <= keys
    return list(caught.value.problems)


def test_a_grid_in_the_order_of_its_axes() -> None:
    made = points_of({"optimizer.lr": [0.2, 0.1], "trainer.epochs": [1, 2]}, base={"seed": 5}, seeds=2)

    assert made.skipped == []
    assert [point.id for point in made.points] == [f"{number:04d}" for number in range(8)]
    assert [tuple(point.overrides.values()) for point in made.points] == [
        (rate, epochs, seed) for rate in (0.2, 0.1) for epochs in (1, 2) for seed in (5, 6)
    ]
    assert list(made.points[0].overrides) == ["optimizer.lr", "trainer.epochs", "seed"]
    assert made.points[1].setting == {"optimizer.lr": 0.2, "trainer.epochs": 1}


def test_one_seed_is_no_override() -> None:
    assert points_of({"optimizer.lr": [0.1]}).points[0].overrides == {"optimizer.lr": 0.1}


def test_points_of_the_same_workers_are_side_by_side() -> None:
    space = {"optimizer.lr": [0.2, 0.1], "scaling.num_workers": [2, 1], "trainer.epochs": [1, 2]}
    settings = [tuple(point.overrides.values()) for point in points_of(space).points]

    assert settings == [(rate, workers, epochs) for workers in (2, 1) for rate in (0.2, 0.1) for epochs in (1, 2)]


def test_whole_sections_of_workers_are_side_by_side() -> None:
    space = {"seed": [1, 2], "scaling": [{"num_workers": 2}, {"num_workers": 1}]}
    workers = [point.overrides["scaling"]["num_workers"] for point in points_of(space).points]
    assert workers == [2, 2, 1, 1]


def test_more_drawn_points_begin_with_the_same() -> None:
    space = {"optimizer.lr": {"loguniform": [1e-3, 1]}, "trainer.epochs": [1, 2, 3], "seed": {"randint": [0, 9]}}
    few = points_of(space, search="random", num_samples=5).points
    many = points_of(space, search="random", num_samples=50).points
    others = points_of(space, base={"seed": 1}, search="random", num_samples=5).points

    assert many[:5] == few
    assert others != few
    assert {point.overrides["trainer.epochs"] for point in many} == {1, 2, 3}
    assert all(1e-3 <= point.overrides["optimizer.lr"] <= 1 for point in many)
    assert all(0 <= point.overrides["seed"] < 9 for point in many)


def test_the_seeds_of_a_drawn_point_share_its_values() -> None:
    points = points_of({"optimizer.lr": {"uniform": [0.1, 1]}}, search="random", num_samples=2, seeds=3).points
    assert [point.overrides["seed"] for point in points] == [0, 1, 2, 0, 1, 2]
    assert points[0].setting == points[2].setting != points[3].setting


def test_invalid_points_are_refused_reason_by_reason() -> None:
    problems = refused(UNEVEN)
    assert [problem.reason for problem in problems] == [
        "data.global_batch_size=64, scaling.num_workers=3 makes no valid config: "
        "data.global_batch_size: 64 does not divide evenly by 3 workers",
        "data.global_batch_size=100, scaling.num_workers=3 makes no valid config: "
        "data.global_batch_size: 100 does not divide evenly by 3 workers",
    ]
    assert [problem.hint for problem in problems] == [
        "write 63 or 66, or set sweep.invalid: skip",
        "write 99 or 102, or set sweep.invalid: skip",
    ]


@pytest.mark.parametrize(
    ("space", "reason", "hint"),
    [
        ({"optimizer.lr": [0.1, [0.2, 0.3]]}, "must be a number, not a list", "take the inner list out, and write its"),
        ({"trainer.epochs": [1, -1]}, "trainer.epochs=-1 makes no valid config: ", "change this value of the axis"),
        ({"model": [{"name": "mlp"}, {"name": "mpl"}]}, "there is no model 'mpl'", "did you mean mlp?"),
        ({"trainer.precision": ["32-true", "bf16"]}, "not 'bf16'", "did you mean bf16-"),
    ],
)
def test_a_value_that_is_wrong_by_itself_is_told_of_at_its_axis(space: dict[str, Any], reason: str, hint: str) -> None:
    (problem,) = refused({"seed": [1, 2], **space})
    assert problem.key == f"sweep.space.{next(iter(space))}"
    assert "seed=" not in problem.reason
    assert "; so does 1 more point" in problem.reason
    assert reason in problem.reason
    assert hint in problem.hint
    assert "skip" not in problem.hint


def test_a_field_that_only_some_components_have_can_be_skipped() -> None:
    (problem,) = refused({"optimizer.name": ["sgd", "adamw"], "optimizer.beta1": [0.5, 0.9]})
    assert problem.key == "sweep.space"
    assert problem.hint.endswith("set sweep.invalid: skip")


def test_the_same_reason_is_told_once() -> None:
    space = {"trainer.precision": ["16-mixed", "32-true"], "optimizer.lr": [0.1, 0.2, 0.3]}
    (problem,) = refused(space, base={"scaling": {"use_gpu": False}})
    assert problem.reason == (
        "trainer.precision=16-mixed, optimizer.lr=0.1 makes no valid config: trainer.precision: fp16 needs CUDA; "
        "so do 2 more points"
    )
    assert problem.hint == "use bf16-mixed, or set sweep.invalid: skip"


def test_many_reasons_that_differ_in_numbers_are_told_as_one() -> None:
    (problem,) = refused({"optimizer.momentum": {"uniform": [-1, 0.5]}}, search="random", num_samples=60)
    assert "must be at least 0, not -0." in problem.reason
    assert problem.reason.endswith(" more points")


def test_invalid_points_are_skipped_on_demand() -> None:
    made = points_of(UNEVEN, invalid="skip")

    assert [(point.id, *point.overrides.values()) for point in made.points] == [
        ("0000", 64, 1),
        ("0001", 96, 1),
        ("0002", 100, 1),
        ("0004", 96, 3),
    ]
    assert [(trial.id, trial.state, trial.reason) for trial in made.skipped] == [
        ("0003", "skipped", "data.global_batch_size: 64 does not divide evenly by 3 workers"),
        ("0005", "skipped", "data.global_batch_size: 100 does not divide evenly by 3 workers"),
    ]
    assert made.skipped[0].overrides == {"data.global_batch_size": 64, "scaling.num_workers": 3}


def test_each_seed_of_an_invalid_point_is_skipped() -> None:
    made = points_of({"data.global_batch_size": [64, 96], "scaling.num_workers": [3]}, invalid="skip", seeds=2)
    assert [trial.id for trial in made.skipped] == ["0000", "0001"]
    assert [trial.overrides["seed"] for trial in made.skipped] == [0, 1]
    assert [point.id for point in made.points] == ["0002", "0003"]


def test_invalid_drawn_points_keep_their_numbers() -> None:
    space = {"optimizer.momentum": {"uniform": [-1, 0.9]}}
    made = points_of(space, search="random", num_samples=20, invalid="skip")
    numbers = [int(each.id) for each in (*made.points, *made.skipped)]

    assert sorted(numbers) == list(range(20))
    assert all(point.overrides["optimizer.momentum"] >= 0 for point in made.points)
    assert all("optimizer.momentum: must be at least 0" in trial.reason for trial in made.skipped)
    assert made.points
    assert made.skipped


def test_skipping_all_points_is_refused() -> None:
    (problem,) = refused({"data.global_batch_size": [100], "scaling.num_workers": [3]}, invalid="skip")
    assert problem.hint == "write 99 or 102"


def test_what_follows_from_a_point_is_checked_too() -> None:
    base = {"data": {"name": "mnist5k", "drop_last": True}}
    (problem,) = refused({"data.global_batch_size": [4000, 4001]}, base=base)
    assert "an epoch has no step: the training set has 4000 samples" in problem.reason


def test_data_that_are_too_few_for_a_point(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 200)
    base = {
        "model": {"name": "gpt"},
        "task": {"name": "language_modeling"},
        "data": {"name": "text_file", "file": str(tmp_path / "text")},
    }
    made = points_of({"data.validation_fraction": [0.1, 1e-6]}, base=base, invalid="skip")
    assert [point.overrides for point in made.points] == [{"data.validation_fraction": 0.1}]
    assert "leave 1,000 for training and 0 for validation" in made.skipped[0].reason


def test_code_that_is_not_found() -> None:
    (problem,) = refused({"model.path": ["no_such_package.nets:build"]})
    assert problem.reason.startswith("model.path=no_such_package.n")
    assert "model.path: no module named 'no_such_package.nets'" in problem.reason


def build(width: int, depth: int = 2) -> None:
    """Stands for the user's own model."""


def other(size: int = 1) -> None:
    """Stands for another one."""


OWN = {"path": f"{__name__}:build", "args": {"width": 8}}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"model.args.widht": [16, 32]}, "build() takes no such argument"),
        ({"model.args": [{"widht": 16}, {"width": 16}]}, "model.args.width: is missing: build() needs it"),
        ({"model": [OWN, {**OWN, "args": {}}]}, "model.args.width: is missing: build() needs it"),
        ({"model.path": [OWN["path"], f"{__name__}:other"]}, "other() takes no such argument"),
    ],
)
@pytest.mark.parametrize("search", [{}, {"search": "optuna", "num_samples": 3}])
def test_arguments_that_code_does_not_take(space: dict[str, Any], words: str, search: dict[str, Any]) -> None:
    assert words in str(refused(space, base={"model": OWN}, **search))


def test_arguments_that_several_axes_give() -> None:
    space = {"model.args.width": [1, 2], "model.args.depth": [1, 2]}
    assert len(points_of(space, base={"model": {"path": OWN["path"]}}).points) == 4


def test_code_is_looked_at_once_for_each_way_of_calling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    look = point_checks.missing_modules
    monkeypatch.setattr(point_checks, "missing_modules", lambda tree: (seen.append(tree), look(tree))[1])
    assert len(points_of({"model.args.width": [1, 2, 3]}, base={"model": OWN}).points) == 3
    assert len(seen) == 1


def test_a_config_without_a_sweep() -> None:
    with pytest.raises(ConfigError) as caught:
        make_points(validate(TREE))
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == ("missing-key", "sweep")
    assert "sweep: {space: " in problem.hint


def test_optuna_makes_no_points_in_advance() -> None:
    space = {"optimizer.lr": {"loguniform": [1e-3, 1]}, "data.global_batch_size": [64, 128]}
    assert points_of(space, search="optuna", num_samples=5) == Points([], [])


def test_bounds_for_optuna_are_checked() -> None:
    space = {"optimizer.lr": {"uniform": [0, 1]}, "optimizer.momentum": [0.5, 1.5]}
    low, high = refused(space, search="optuna", num_samples=5)
    assert low.reason == "optimizer.lr=0 makes no valid config: optimizer.lr: must be more than 0, not 0.0"
    assert (
        high.reason == "optimizer.momentum=1.5 makes no valid config: optimizer.momentum: must be less than 1, not 1.5"
    )
    assert high.hint == "change this value of the axis, or take it out"
    assert (low.key, high.key) == ("sweep.space.optimizer.lr", "sweep.space.optimizer.momentum")
    assert points_of(space, search="optuna", num_samples=5, invalid="skip") == Points([], [])


def test_an_axis_for_optuna_whose_values_are_all_wrong_is_refused() -> None:
    space = {"optimizer.momentum": [1.5, 2.5], "optimizer.lr": [0.1, -1]}
    problems = refused(space, search="optuna", num_samples=5, invalid="skip")
    assert [problem.reason.partition("=")[0] for problem in problems] == ["optimizer.momentum"] * 2


def test_values_for_optuna_that_are_right_beside_others() -> None:
    space = {"data.global_batch_size": [63, 66], "scaling.num_workers": [3, 1]}
    assert points_of(space, search="optuna", num_samples=5) == Points([], [])

    space = {"optimizer.name": ["sgd", "adamw"], "optimizer.beta1": [0.5, 0.9]}
    assert points_of(space, search="optuna", num_samples=5, invalid="skip") == Points([], [])


def test_switching_a_component_warns_once() -> None:
    base = {"optimizer": {"name": "sgd", "momentum": 0.5}}
    config = config_of({"optimizer.name": ["sgd", "adamw"], "optimizer.lr": [0.1, 0.2, 0.3]}, base=base)
    with pytest.warns(ConfigWarning, match="optimizer.name=adamw: dropped momentum") as caught:
        made = make_points(config)

    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(made.points) == 6
    with warnings.catch_warnings(action="error"):
        optimizer = trial_config(config, made.points[-1].overrides).optimizer
    assert optimizer.model_dump(include={"name", "lr"}) == {"name": "adamw", "lr": 0.3}


def test_the_config_of_a_trial() -> None:
    config = config_of({"model": [{"name": "mlp"}, {"name": "cnn"}], "optimizer.lr": [0.5]})
    trial = trial_config(config, make_points(config).points[0].overrides)

    assert trial.sweep is None
    assert (trial.model.describe(), trial.optimizer.lr, trial.name) == ("mlp", 0.5, "run")
    assert trial == config.with_overrides({"model": {"name": "mlp"}, "optimizer.lr": 0.5, "sweep": None})
    with pytest.raises(ConfigError, match=r"optimizer\.lr"):
        trial_config(config, {"optimizer.lr": -1})


def test_what_points_come_to() -> None:
    base = {"trainer": {"epochs": 2}, "optimizer": {"name": "sgd", "lr": 0.1, "lr_scaling": "linear"}}
    config = config_of({"data.global_batch_size": [64, 300], "trainer.max_steps": [None, 20]}, base=base)
    preview = describe_points(config, make_points(config).points)

    assert [(row.id, row.global_batch_size, row.total_steps, row.samples) for row in preview.rows] == [
        ("0000", 64, 126, 8000),
        ("0001", 64, 20, 1280),
        ("0002", 300, 28, 8000),
        ("0003", 300, 20, 4000 + 6 * 300),
    ]
    assert preview.total_samples == 8000 + 1280 + 8000 + 5800
    row = preview.rows[2]
    assert (row.lr, row.lr_rule) == (0.1 * 300 / 256, "0.1 x 300/256 (linear) = 0.117188")
    assert (row.micro_batch_size, row.gradient_accumulation_steps) == (300, 1)
    assert row.overrides == {"data.global_batch_size": 300, "trainer.max_steps": None}
    assert row.warnings == ()


def test_samples_that_are_left_out_do_not_count() -> None:
    base = {"data": {"name": "mnist5k", "global_batch_size": 64, "drop_last": True}}
    config = config_of({"data.global_batch_size": [300]}, base=base)
    assert describe_points(config, make_points(config).points).total_samples == 13 * 300


def test_warnings_of_a_point_are_shown() -> None:
    config = config_of({"lr_scheduler.warmup_steps": [0, 100]})
    rows = describe_points(config, make_points(config).points).rows
    assert rows[0].warnings == ()
    assert rows[1].warnings[0].startswith("the warmup of 100 steps is longer than the training of 63 steps")


def test_what_is_not_known_before_the_data_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_sets.py").write_text("def data(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = config_of({"optimizer.lr": [0.1]}, base={"data": {"path": "own_sets:data", "micro_batch_size": 8}})
    preview = describe_points(config, make_points(config).points)
    assert (preview.rows[0].global_batch_size, preview.rows[0].samples, preview.total_samples) == (8, None, None)


def test_two_thousand_points_take_seconds() -> None:
    space = {"optimizer.lr": {"loguniform": [1e-3, 1]}, "data.global_batch_size": [64, 256]}
    config = config_of(space, search="random", num_samples=2000)
    start = time.process_time()
    assert len(make_points(config).points) == 2000
    assert time.process_time() - start < 8
