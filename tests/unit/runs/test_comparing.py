"""Groups of runs, and what is shown of their metrics."""

import json
import math

import pytest

from paceline.runs.comparing import Member, RunComparison, RunGroup


def member(label: str, loss: float, **config: object) -> Member:
    return Member(label, {"optimizer.lr": 0.1, **config}, {"val/loss": loss}, 100.0, {}, [])


def test_a_diverged_seed_has_no_deviation() -> None:
    group = RunGroup((member("a", 1.0), member("b", math.inf)))
    value = group.value("val/loss")
    assert value is not None
    assert (value.mean, value.deviation, value.count) == (math.inf, None, 2)
    told = RunComparison((group, RunGroup((member("c", math.nan),)))).to_json()
    assert json.loads(json.dumps(told, allow_nan=False))["metrics"]["val/loss"][0]["mean"] is None


def test_the_places_of_runs_are_no_difference() -> None:
    one, other = member("a", 1.0, name="x", **{"storage.path": "here"}), member("b", 1.0, name="y", seed=3)
    assert set(RunComparison((RunGroup((one,)), RunGroup((other,)))).config) == {"seed"}


@pytest.mark.parametrize(("seeds", "label"), [(1, "a"), (2, "a and 1 more seed"), (3, "a and 2 more seeds")])
def test_a_group_is_called_by_its_first_run(seeds: int, label: str) -> None:
    assert RunGroup(tuple(member(name, 1.0) for name in "abc"[:seeds])).label == label
