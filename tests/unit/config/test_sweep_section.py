"""The section `sweep`: its axes, what it must agree on, where its problems are found, and how it is overridden."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.experiment import validate
from paceline.config.loading import dump_yaml, load_config
from paceline.config.source import read_text
from paceline.config.space import LogUniform, QUniform, RandInt, Range, Uniform
from paceline.config.sweep import SweepConfig
from paceline.errors import ConfigError, Problem
from support.configs import TREE, problems_of

Write = Callable[..., Path]
Refused = Callable[..., None]
Refuse = Callable[[Any], Problem]
RATES = {"optimizer.lr": [0.1, 0.2]}
DRAWN: dict[str, Any] = {"search": "random", "num_samples": 4}


def tree_of(space: dict[str, Any] | None = None, base: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A tree with a sweep, over a base; `fields` are those of its section."""
    return {**TREE, **(base or {}), "sweep": {"space": space or RATES, **fields}}


def sweep_of(space: dict[str, Any] | None = None, **fields: Any) -> SweepConfig:
    sweep = validate(tree_of(space, **fields)).sweep
    assert sweep is not None
    return sweep


def problem_of(space: dict[str, Any], **fields: Any) -> tuple[str, str]:
    """Code and key of the one problem of a config with a sweep."""
    (problem,) = problems_of(validate, tree_of(space, **fields))
    return problem.code, problem.key


AXES = [
    ("3", ""),
    ("null", ""),
    ("[]", ""),
    ("[0.1, 0.2, 0.1]", ""),
    ("[{a: 1, b: 2}, {b: 2, a: 1}]", ""),
    ("[[1, {a: .inf}]]", ""),
    ("{}", ""),
    ("{normal: [0, 1]}", ""),
    ("{lr: [0, 1]}", ""),
    ("{uniform: [0, 1], randint: [0, 1]}", ""),
    ("{uniform: [1, 0]}", ".uniform"),
    ("{uniform: [1, 1]}", ".uniform"),
    ("{uniform: [1]}", ".uniform"),
    ("{uniform: 1}", ".uniform"),
    ("{uniform: [0, x]}", ".uniform"),
    ("{uniform: [0, 1e61]}", ".uniform"),
    ("{loguniform: [0, 1]}", ".loguniform"),
    ("{quniform: [0, 1, 2]}", ".quniform"),
    ("{quniform: [0, 1, 0]}", ".quniform"),
    ("{quniform: [0, 1, 1e-30]}", ".quniform"),
    ("{randint: [0.5, 3]}", ".randint"),
    ("{randint: [0, 9223372036854775808]}", ".randint"),
]


@pytest.mark.parametrize(("text", "below"), AXES, ids=[text for text, _ in AXES])
def test_what_is_no_axis_is_refused_at_its_place(refused: Refused, text: str, below: str) -> None:
    body = f"sweep:\n  search: random\n  num_samples: 4\n  space:\n    optimizer.lr: {text}\n"
    refused(body, "bad-axis", f"sweep.space.optimizer.lr{below}", 8)


@pytest.mark.parametrize(
    ("body", "code", "key"),
    [
        ("sweep: {}", "missing-key", "sweep.space"),
        ("sweep: 3", "wrong-type", "sweep"),
        ("sweep: {space: {}}", "bad-axis", "sweep.space"),
        ("sweep: {space: [1]}", "wrong-type", "sweep.space"),
        ("sweep: {space: {seed: [1]}, serach: grid}", "unknown-key", "sweep.serach"),
        ("sweep: {space: {seed: [1]}, search: rand}", "bad-choice", "sweep.search"),
        ("sweep: {space: {seed: [1]}, metric: a b}", "bad-text", "sweep.metric"),
        ("sweep: {space: {seed: [1]}, seeds: 0}", "out-of-range", "sweep.seeds"),
        ("sweep: {space: {seed: [1]}, stop: {target: .inf}}", "not-finite", "sweep.stop.target"),
        ("sweep: {space: {seed: [1]}, stop: {wall_second: 1}}", "unknown-key", "sweep.stop.wall_second"),
    ],
)
def test_bad_values_of_the_section(refused: Refused, body: str, code: str, key: str) -> None:
    refused(f"{body}\n", code, key, 4)


@pytest.mark.parametrize("axis", ["optimizer.learning_rate", "lr", "optimizer.beta1", "trainer.epochs.x", "a b"])
def test_an_axis_must_be_a_key_of_the_config(refused: Refused, axis: str) -> None:
    refused(f"sweep:\n  space:\n    seed: [1]\n    {axis}: [1, 2]\n", "unknown-key", f"sweep.space.{axis}", 7)


@pytest.mark.parametrize(
    "axis",
    ["optimizer", "optimizer.name", "model.path", "model.args.layers.first", "trainer", "trainer.precision", "seed"],
)
def test_keys_that_may_be_axes(axis: str) -> None:
    assert sweep_of({axis: [1, "a", None, True, {"name": "b"}]}).lists == {axis: [1, "a", None, True, {"name": "b"}]}


PBT: dict[str, Any] = {"scheduler": "pbt"}
FIXED = ("name", "storage.path", "tracking.uri", "checkpoint.keep", "sweep.seeds", "storage")
"""What does not change the computation."""
FIXED_WHILE_TRAINING = (
    *("optimizer", "optimizer.name", "optimizer.nesterov", "optimizer.fused", "lr_scheduler.name", "seed"),
    *("model.args.width", "data.global_batch_size", "trainer.precision", "scaling.num_workers"),
)
"""What PBT cannot change."""


@pytest.mark.parametrize(
    ("axis", "fields"), [*((axis, {}) for axis in FIXED), *((axis, PBT) for axis in FIXED_WHILE_TRAINING)]
)
def test_what_may_be_no_axis(axis: str, fields: dict[str, Any]) -> None:
    assert problem_of({axis: [1, 2]}, **fields) == ("contradiction", f"sweep.space.{axis}")


@pytest.mark.parametrize(
    ("code", "fields", "axis", "values"),
    [
        ("unknown-key", {}, "optimizer.beta1", {"optimizer.name": ["sgd"], "optimizer.beta1": [0.8]}),
        ("bad-axis", {}, "model.path", {"model.path": [print]}),
        ("contradiction", PBT, "optimizer.lr_scaling", {"optimizer.lr_scaling": ["none", "adascale"]}),
    ],
)
def test_values_that_an_axis_may_not_have(code: str, fields: dict[str, Any], axis: str, values: dict[str, Any]) -> None:
    assert problem_of(values, **fields) == (code, f"sweep.space.{axis}")


VALLEY = {"search": "scale", "num_samples": 4, "base": {"data": {"name": "synthetic", "global_batch_size": 8}}}
DISAGREEMENTS: list[tuple[dict[str, Any], str]] = [
    ({"space": {"optimizer": [{"name": "sgd"}], "optimizer.lr": [0.1]}}, "sweep.space.optimizer.lr"),
    ({"space": {"seed": [1, 2]}, "seeds": 2}, "sweep.space.seed"),
    ({"seeds": 2, "base": {"seed": 2**63 - 1}}, "sweep.seeds"),
    ({"space": {"optimizer.lr": {"uniform": [0, 1]}}}, "sweep.space.optimizer.lr"),
    ({"space": {"data.global_batch_size": {"uniform": [64, 128]}}, **DRAWN}, "sweep.space.data.global_batch_size"),
    ({"space": {"trainer.epochs": {"quniform": [1, 2, 0.5]}}, **DRAWN}, "sweep.space.trainer.epochs"),
    ({"space": {"trainer.precision": {"uniform": [0, 1]}}, **DRAWN}, "sweep.space.trainer.precision"),
    ({"num_samples": 3}, "sweep.num_samples"),
    ({"search": "random"}, "sweep.num_samples"),
    ({"metric": ["val/loss", "val/accuracy", "val/loss"]}, "sweep.metric"),
    ({"mode": ["min", "max"]}, "sweep.mode"),
    ({"metric": ["val/loss", "val/accuracy"], "mode": "min"}, "sweep.mode"),
    ({"metric": ["val/loss", "val/accuracy"], "scheduler": "asha"}, "sweep.scheduler"),
    ({"scheduler": "median", "budget_unit": "seconds"}, "sweep.first_rung"),
    ({"space": {"seed": list(range(101)), "trainer.epochs": list(range(1, 101))}}, "sweep.space"),
    ({"seeds": 5001}, "sweep.space"),
    ({"search": "random", "num_samples": 5000, "seeds": 3}, "sweep.num_samples"),
    ({"scheduler": "pbt", "search": "optuna", "num_samples": 4}, "sweep.search"),
    ({"scheduler": "pbt", "seeds": 2}, "sweep.seeds"),
    ({"scheduler": "pbt", "search": "random", "num_samples": 1}, "sweep.num_samples"),
    ({"scheduler": "pbt", "space": {"optimizer.lr": [0.1]}}, "sweep.space"),
    ({"space": {"optimizer.lr": {"loguniform": [0.1, 1]}}, **VALLEY}, "sweep.space"),
    ({"space": {"data.global_batch_size": [32], "optimizer.lr": [1]}, **VALLEY}, "sweep.space"),
]


@pytest.mark.parametrize(("fields", "key"), DISAGREEMENTS)
def test_disagreements(fields: dict[str, Any], key: str, refuse: Refuse) -> None:
    problem = refuse(tree_of(**fields))
    assert (problem.code, problem.key) == ("contradiction", key)


@pytest.mark.parametrize(
    "fields",
    [
        {"search": "optuna", "num_samples": 3, "scheduler": "asha"},
        {"search": "optuna", "num_samples": 3, "metric": ["val/loss", "val/accuracy"]},
        {"metric": ["val/loss", "val/accuracy"], "mode": ["min", "max"]},
        {"metric": ["val/loss"], "mode": "min", "scheduler": "median"},
        {"scheduler": "asha", "budget_unit": "seconds", "first_rung": 5},
        {"scheduler": "pbt", "search": "random", "num_samples": 2},
        {"seeds": 5000},
        {"slots": 2, "stop": {"target": -1, "trial_seconds": 3.5, "wall_seconds": 7}},
        {"space": {"optimizer.lr": {"randint": [1, 3]}, "data.global_batch_size": {"randint": [1, 3]}}, **DRAWN},
        {"space": {"trainer.max_grad_norm": {"uniform": [1, 3]}, "model.args.x": {"uniform": [1, 3]}}, **DRAWN},
        {"space": {"optimizer.name": ["sgd", "adamw"], "optimizer.beta1": [0.8, 0.9]}},
        *({"space": {axis: [1, 2]}, **PBT} for axis in ("optimizer.lr", "optimizer.weight_decay")),
        *({"space": {axis: [1, 2]}, **PBT} for axis in ("lr_scheduler.warmup_epochs", "trainer.max_grad_norm")),
        {"space": {"optimizer.lr_scaling": ["none", "sqrt"]}, **PBT},
    ],
)
def test_what_agrees(fields: dict[str, Any]) -> None:
    sweep_of(**fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [("val/loss", "min")]),
        ({"metric": "val/accuracy"}, [("val/accuracy", "max")]),
        ({"metric": "val/accuracy", "mode": "min"}, [("val/accuracy", "min")]),
        (
            {"metric": ["train/Perplexity", "f1", "step_seconds", "peak_memory_bytes"]},
            [("train/Perplexity", "min"), ("f1", "max"), ("step_seconds", "min"), ("peak_memory_bytes", "min")],
        ),
        ({"metric": ["a", "train/loss"], "mode": ["min", "max"]}, [("a", "min"), ("train/loss", "max")]),
    ],
)
def test_objectives(fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert sweep_of(**fields).objectives == expected


def test_all_that_is_wrong_is_told_at_once(write: Write) -> None:
    file = write(
        "trainer: {epochs: 0, precision: 16-mixed}\nscaling: {use_gpu: false}\nsweep:\n  seeds: 0\n  space:\n"
        "    optimizer.lr: {uniform: [1, 0]}\n    optimizer.x: [1]\n    optimizer.momentum: 3\n"
    )
    assert {(problem.key, problem.place.split(":")[1]) for problem in problems_of(load_config, file)} == {
        ("trainer.epochs", "4"),
        ("trainer.precision", "4"),
        ("sweep.seeds", "7"),
        ("sweep.space.optimizer.lr.uniform", "9"),
        ("sweep.space.optimizer.x", "10"),
        ("sweep.space.optimizer.momentum", "11"),
    }


@pytest.mark.parametrize("sweep", [{"space": {"optimizer.lr": 3}}, {"space": {}}, {"space": 3}, {}, 3])
def test_a_wrong_sweep_does_not_hide_the_rest(sweep: Any) -> None:
    tree = {**TREE, "trainer": {"cudnn_benchmark": True, "deterministic": True}, "sweep": sweep}
    found = {problem.key.partition(".")[0] for problem in problems_of(validate, tree)}
    assert found == {"trainer", "sweep"}


def test_overrides_of_parts(write: Write) -> None:
    file = write("sweep: {space: {optimizer.lr: [0.1]}}\n")
    config = load_config(file, ["sweep.space.optimizer.lr=[1.0,2.0]", "sweep.space.seed=[1]", "sweep.seeds=1"])
    assert config.sweep is not None
    assert config.sweep.lists == {"optimizer.lr": [1.0, 2.0], "seed": [1]}

    config = load_config(write(), ["sweep.space={optimizer.lr: [0.1]}", "sweep.seeds=2", "sweep.stop.target=0.5"])
    assert config.sweep is not None
    assert (config.sweep.seeds, config.sweep.stop.target) == (2, 0.5)
    assert config.with_overrides({"sweep": None}).sweep is None
    assert config.with_overrides(
        {"sweep.space.optimizer.lr": {"uniform": [0, 1]}, "sweep.search": "random", "sweep.num_samples": 1}
    ).sweep.ranges.keys() == {"optimizer.lr"}  # type: ignore[union-attr]


def test_problems_of_overrides_name_them(write: Write) -> None:
    override = "sweep.space.optimizer.learning_rate=[1.0]"
    (problem,) = problems_of(load_config, write(), [override])
    assert (problem.key, problem.place) == ("sweep.space.optimizer.learning_rate", f"override '{override}'")


def test_a_sweep_is_written_and_read_again() -> None:
    space = {
        "optimizer.lr": {"loguniform": [1e-3, 1]},
        "seed": {"randint": [0, 5]},
        "trainer.epochs": [1, 2],
        "data.global_batch_size": {"quniform": [32, 64, 32]},
        "trainer.max_grad_norm": {"uniform": [1, 2]},
    }
    config = validate(tree_of(space, **DRAWN))
    again = validate(read_text(dump_yaml(config), "run.yaml").tree)
    assert again == config
    assert again.sweep is not None
    assert again.sweep.ranges["seed"] == RandInt(randint=[0, 5])


@pytest.mark.parametrize(
    ("axis", "expected", "whole"),
    [
        (Uniform(uniform=[-1, 2]), (-1, 2), False),
        (LogUniform(loguniform=[1e-3, 1e3]), (1e-3, 1e3), False),
        (QUniform(quniform=[64, 256, 64]), (64, 256), True),
        (QUniform(quniform=[1, 4]), (1, 4), True),
        (QUniform(quniform=[0.1, 1, 0.1]), (0.1, 1.0), False),
        (QUniform(quniform=[0.1, 0.35, 0.1]), (0.1, 0.3), False),
        (QUniform(quniform=[0, 0.3, 0.1]), (0, 0.3), False),
        (RandInt(randint=[3, 6]), (3, 5), True),
    ],
)
def test_samples_of_ranges(axis: Range, expected: tuple[float, float], whole: bool) -> None:
    rng = Random(0)
    drawn = [axis.sample(rng) for _ in range(3000)]
    low, high = expected

    assert axis.bounds == expected
    assert axis.is_whole is whole
    assert all(low <= value <= high for value in drawn)
    assert {type(value) for value in drawn} == ({int} if whole else {float})
    if isinstance(axis, QUniform | RandInt):
        assert max(len(str(value)) for value in drawn) <= 3  # such as 0.3, and not 0.30000000000000004
        counts = [drawn.count(value) for value in sorted(set(drawn))]
        assert {min(drawn), max(drawn)} == {low, high}
        assert min(counts) > 0.7 * 3000 / len(counts)
    else:
        middle = (low * high) ** 0.5 if isinstance(axis, LogUniform) else (low + high) / 2
        assert 0.45 < sum(value < middle for value in drawn) / 3000 < 0.55


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**400)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["uniform", "loguniform", "quniform", "randint", "x"]), inner, max_size=2),
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(junk, st.sampled_from(["optimizer.lr", "model.args.x", "optimizer.name", "", "a..b", "sweep"]))
def test_random_axes(axis: Any, name: str) -> None:
    tree = {**TREE, "sweep": {"space": {name: axis}, **DRAWN}}
    try:
        config, problems = validate(tree), ()
    except ConfigError as error:
        config, problems = validate(tree_of()), error.problems
    assert all(problem.key.startswith("sweep.space") for problem in problems)
    assert config.sweep is not None
    for numbers in config.sweep.ranges.values():
        low, high = numbers.bounds
        assert low <= numbers.sample(Random(0)) <= high
    read_text(dump_yaml(config), "again.yaml")
