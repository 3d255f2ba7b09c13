"""The critical batch size from branches: found again where the trade-off holds by construction."""

from math import inf, log

import pytest

from paceline.batch_scaling.critical_batch import (
    Branch,
    LossCurve,
    Rule,
    critical_batch,
    efficiency_of,
    expected_efficiency,
    rule_that_held,
)

OWN = 32
SIZES = (64, 128, 256, 512)


def branches_of(
    critical: float, start: int = 1000, rule: Rule = "linear", sizes: tuple[int, ...] = SIZES
) -> list[Branch]:
    """Branches that follow the trade-off exactly."""
    return [Branch(start, size, rule, 1024, 1.0, expected_efficiency(size, OWN, critical)) for size in sizes]


@pytest.mark.parametrize("critical", [20.0, 100.0, 420.0, 3000.0])
def test_the_size_that_branches_were_made_with_is_found(critical: float) -> None:
    found = critical_batch(branches_of(critical), OWN)
    assert found.size == pytest.approx(critical, rel=0.03)
    assert (found.low, found.high) == (found.size, found.size)


def test_it_may_grow_over_training() -> None:
    found = critical_batch([*branches_of(60.0, 500), *branches_of(240.0, 4000)], OWN)
    assert [samples for samples, _ in found.by_samples] == [500, 4000]
    assert (found.low, found.high) == (pytest.approx(60.0, rel=0.03), pytest.approx(240.0, rel=0.03))
    assert found.low < found.size < found.high


def test_without_any_loss_there_is_no_critical_size() -> None:
    found = critical_batch([Branch(1000, size, "linear", 1024, 1.0, 1.02) for size in SIZES], OWN)
    assert found.size == inf


def test_the_better_rule_counts() -> None:
    worse = [Branch(1000, size, "sqrt", 1024, 1.0, 0.01) for size in SIZES]
    assert critical_batch([*worse, *branches_of(420.0)], OWN).size == pytest.approx(420.0, rel=0.03)


def test_efficiency_is_read_from_the_curve_of_the_config_as_it_is() -> None:
    samples = list(range(100, 5100, 100))
    curve = LossCurve(samples, [1.0 / each for each in samples])
    # as good as after 1,500 samples at 2,000, and as after 1,200 in the middle
    assert efficiency_of(curve, (1500, 1.0 / 1200), (2000, 1.0 / 1500)) == pytest.approx(0.6, rel=1e-3)
    assert efficiency_of(curve, (1500, 1.0 / 1500), (2000, 1.0 / 2000)) == pytest.approx(1.0, rel=1e-3)
    assert efficiency_of(curve, (1500, 1.0 / 1500), (2000, 1.0 / 1400)) == 0.0
    assert efficiency_of(curve, (1500, 1.0 / 1500), (2000, inf)) == 0.0


def test_a_noisy_curve_is_made_monotone() -> None:
    samples = list(range(100, 5100, 100))
    losses = [5 - log(each) / 2 + (0.02 if number % 2 else -0.02) for number, each in enumerate(samples)]
    curve = LossCurve(samples, losses)
    assert curve.samples_to(5 - log(2000) / 2) == pytest.approx(2000, rel=0.1)


def test_the_rule_that_holds_to_the_larger_batch_is_taken() -> None:
    linear = [
        Branch(0, size, "linear", 1024, 1.0, value) for size, value in zip(SIZES, (0.98, 0.95, 0.2, 0.0), strict=True)
    ]
    root = [Branch(0, size, "sqrt", 1024, 1.0, value) for size, value in zip(SIZES, (0.95, 0.9, 0.7, 0.5), strict=True)]
    assert rule_that_held([*linear, *root], 0.1) == ("sqrt", 512)
    assert rule_that_held([*linear, *root[:1]], 0.1)[0] == "linear"
