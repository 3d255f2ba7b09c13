"""`sweep.constraints`: how limits are read, what is refused, and by how much a value breaks one."""

import math
from typing import Any

import pytest

from paceline.config.constraints import Constraint, broken_by_seeds
from paceline.config.experiment import validate
from support.configs import TREE, problems_of


def tree_of(constraints: Any) -> dict[str, Any]:
    """Return a tree with a sweep that has constraints."""
    return {**TREE, "sweep": {"space": {"optimizer.lr": [0.1, 0.2]}, "constraints": constraints}}


def limits_of(constraints: Any) -> list[tuple[str, str, float]]:
    """Return the text, the operator and the bound of each constraint of a valid config."""
    sweep = validate(tree_of(constraints)).sweep
    assert sweep is not None
    return [(limit.text, limit.operator, limit.bound) for limit in sweep.limits]


@pytest.mark.parametrize(
    ("metric", "limit", "operator", "bound"),
    [
        ("peak_memory_bytes", "<= 8GiB", "<=", 8 * 2**30),
        ("peak_memory_bytes", "<1.5 MB", "<", 1.5e6),
        ("peak_memory_bytes", "<= 4096", "<=", 4096.0),
        ("val/loss", "< 0.5", "<", 0.5),
        ("val/accuracy", ">=.9", ">=", 0.9),
        ("samples_per_second", "> 1e3", ">", 1000.0),
        ("step_seconds", "< 250ms", "<", 0.25),
        ("seconds", " <= 2 h ", "<=", 7200.0),
        ("train/step_seconds/max", "<= 3 s", "<=", 3.0),
    ],
)
def test_a_limit_is_an_operator_a_number_and_perhaps_a_unit(
    metric: str, limit: str, operator: str, bound: float
) -> None:
    [(text, found, value)] = limits_of({metric: limit})
    assert (found, value) == (operator, pytest.approx(bound))
    assert text.startswith(f"{metric} {operator} ")


@pytest.mark.parametrize(
    ("constraints", "code", "key"),
    [
        ({"val/loss": 0.5}, "bad-constraint", "sweep.constraints.val/loss"),
        ({"val/loss": "0.5"}, "bad-constraint", "sweep.constraints.val/loss"),
        ({"val/loss": "== 0.5"}, "bad-constraint", "sweep.constraints.val/loss"),
        ({"val/loss": "< nan"}, "bad-constraint", "sweep.constraints.val/loss"),
        ({"val/loss": "< 1e999"}, "bad-constraint", "sweep.constraints.val/loss"),
        ({"val/loss": "< 1s"}, "bad-constraint", "sweep.constraints.val/loss"),
        ({"peak_memory_bytes": "< 8gib"}, "bad-constraint", "sweep.constraints.peak_memory_bytes"),
        ({"peak_memory_bytes": "< 8s"}, "bad-constraint", "sweep.constraints.peak_memory_bytes"),
        ({"val/los": "< 1"}, "no-such-metric", "sweep.constraints.val/los"),
        ({"a b": "< 1"}, "bad-text", "sweep.constraints.a b"),
        ("val/loss < 1", "wrong-type", "sweep.constraints"),
    ],
)
def test_what_is_no_constraint_is_refused_at_its_place(constraints: Any, code: str, key: str) -> None:
    (problem,) = problems_of(validate, tree_of(constraints))
    assert (problem.code, problem.key) == (code, key)
    assert problem.hint or code != "bad-constraint"


@pytest.mark.parametrize(
    ("limit", "kept", "broken"),
    [("<= 2", [2.0, 1.0], [2.1]), ("< 2", [1.9], [2.0, 2.1]), (">= 2", [2.0, 3.0], [1.9]), ("> 2", [2.1], [2.0, 1.0])],
)
def test_the_operator_decides_about_the_bound_itself(limit: str, kept: list[float], broken: list[float]) -> None:
    constraint = Constraint.parse("x", limit)
    assert all(constraint.violation(value) <= 0 for value in kept)
    assert all(constraint.violation(value) > 0 for value in [*broken, math.nan, math.inf, None])


def test_a_violation_says_by_how_much() -> None:
    assert Constraint.parse("x", "<= 2").violation(2.5) == pytest.approx(0.5)
    assert Constraint.parse("x", "> 2").violation(1.5) == pytest.approx(0.5)
    assert Constraint.parse("peak_memory_bytes", "<= 1KiB").violation(24.0) == -1000.0


def test_the_mean_over_seeds_decides() -> None:
    assert broken_by_seeds([{"a": 0.5}, {"a": -0.6}]) == []
    assert broken_by_seeds([{"a": 0.5, "b": -1.0}, {"a": -0.4, "b": 0.1}]) == ["a"]
    assert broken_by_seeds([{"a": math.inf}, {"a": -5.0}]) == ["a"]
    assert broken_by_seeds([]) == []


def test_a_setting_of_which_each_seed_breaks_another_constraint_breaks_them() -> None:
    assert broken_by_seeds([{"a": 0.1, "b": -1.0}, {"a": -1.0, "b": 0.1}]) == ["a", "b"]
