"""Groups of runs, and what is shown of their metrics."""

import json
import math

import pytest

from paceline.runs.comparing import Member, RunComparison, RunGroup


def member(label: str, loss: float, **config: object) -> Member:
    return Member(label, {"optimizer.lr": 0.1, **config}, {"val/loss": loss}, 100.0, {}, [])


def test_a_diverged_seed_has_no_deviation() -> None:
    group = RunGroup((member("a", 1.0, seed=0), member("b", math.inf, seed=1)))
    value = group.value("val/loss")
    assert value is not None
    assert (value.mean, value.deviation, value.count) == (math.inf, None, 2)
    told = RunComparison((group, RunGroup((member("c", math.nan),)))).to_json()
    assert json.loads(json.dumps(told, allow_nan=False))["metrics"]["val/loss"][0]["mean"] is None


def test_the_places_of_runs_are_no_difference() -> None:
    one, other = member("a", 1.0, name="x", **{"storage.path": "here"}), member("b", 1.0, name="y", seed=3)
    assert set(RunComparison((RunGroup((one,)), RunGroup((other,)))).config) == {"seed"}


@pytest.mark.parametrize(
    ("seeds", "label"),
    [
        ((0,), "a"),
        ((0, 1), "a and 1 more seed"),
        ((2, 0, 1), "a and 2 more seeds"),
        ((0, 0), "a and 1 repeat"),
        ((0, 1, 0, 1), "a and 1 more seed and 2 repeats"),
    ],
)
def test_a_group_is_called_by_its_first_run(seeds: tuple[int, ...], label: str) -> None:
    group = RunGroup(tuple(member(name, 1.0, seed=seed) for name, seed in zip("abcd", seeds, strict=False)))
    assert group.label == label


def test_repeats_of_a_seed_count_as_one() -> None:
    """Two runs of one seed say nothing of how much a metric varies from seed to seed."""
    twice = RunGroup((member("a", 1.0, seed=0), member("b", 1.0, seed=0))).value("val/loss")
    assert twice is not None
    assert (twice.mean, twice.deviation, twice.count) == (1.0, None, 1)
    three = RunGroup((member("a", 1.0, seed=0), member("b", 2.0, seed=0), member("c", 3.5, seed=1))).value("val/loss")
    assert three is not None
    assert (three.mean, three.count) == (2.5, 2)
    assert three.deviation == pytest.approx(math.sqrt(2))
