"""The critical batch size from branches: found again where the trade-off holds by construction."""

from math import exp, inf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest

from paceline.batch_scaling.critical_batch import (
    Branch,
    LossCurve,
    Rule,
    branch_from_start,
    branch_of,
    critical_batch,
    efficiency_of,
    expected_efficiency,
    fitted_critical_batch,
)
from paceline.batch_scaling.lr_rules import LrRules, rules_that_held
from paceline.batch_scaling.refinement import BRANCH_ERROR, SamplesRatio, critical_batch_of, refined
from paceline.batch_scaling.speedup import USUAL_FREEDOM, moderated_scatter

OWN, TARGET = 32, 10_000
SIZES = (64, 128, 256, 512)


def branches_of(critical: float, start: int = 0, rule: Rule = "linear", sizes: tuple[int, ...] = SIZES) -> list[Branch]:
    """Branches that follow the trade-off exactly."""
    return [Branch(start, size, rule, 1024, 1.0, expected_efficiency(size, OWN, critical)) for size in sizes]


WORSE = [Branch(0, size, "sqrt", 1024, 1.0, 0.01) for size in SIZES]
NO_LOSS = [Branch(0, size, "linear", 1024, 1.0, 1.02) for size in SIZES]


@pytest.mark.parametrize(
    ("branches", "critical"),
    [
        *((branches_of(critical), critical) for critical in (20.0, 100.0, 420.0, 3000.0)),
        (branches_of(240.0, 4000), 240.0),  # what was measured after the start alone counts from the start
        ([*WORSE, *branches_of(420.0)], 420.0),
        (NO_LOSS, inf),
    ],
    ids=["20", "100", "420", "3000", "later", "the better rule", "no loss"],
)
def test_the_size_that_branches_were_made_with_is_found(branches: list[Branch], critical: float) -> None:
    found = critical_batch(branches, OWN, TARGET)
    assert found.size == pytest.approx(critical, rel=0.03)
    assert (found.low, found.high) == (found.size, found.size)


def test_where_it_grows_over_training_the_samples_to_the_target_add_up() -> None:
    found = critical_batch([*branches_of(60.0), *branches_of(240.0, 4000)], OWN, TARGET)
    assert [samples for samples, _ in found.by_samples] == [0, 4000]
    assert (found.low, found.high) == (pytest.approx(60.0, rel=0.03), pytest.approx(240.0, rel=0.03))
    for size in SIZES:
        samples = 4000 / expected_efficiency(size, OWN, 60.0) + 6000 / expected_efficiency(size, OWN, 240.0)
        assert TARGET / expected_efficiency(size, OWN, found.size) == pytest.approx(samples, rel=0.03)


def test_a_branch_of_few_steps_counts_no_more_than_another() -> None:
    """A ConvNeXt: 0.985 with 59 steps of 128, 0.277 with 14 of 512. Its grid has 755; logarithms of both fit 194."""
    assert 280 < fitted_critical_batch({128: 0.985, 512: 0.277}, OWN) < 380
    assert fitted_critical_batch({128: 1.3, 512: 0.5}, OWN) == fitted_critical_batch({128: 1.0, 512: 0.5}, OWN)


def measured(size: int, critical: float, error: float, is_lower_limit: bool = False) -> SamplesRatio:
    """What trainings to the target show where the trade-off has this critical batch size."""
    return SamplesRatio(size, 1 / expected_efficiency(size, OWN, critical), error, is_lower_limit=is_lower_limit)


def corrected(critical: float, *trained: SamplesRatio) -> float:
    """The critical batch size of branches, corrected by trainings."""
    return refined(critical_batch(branches_of(critical), OWN, TARGET), OWN, trained, max(SIZES)).size


def test_trainings_to_the_target_correct_it() -> None:
    few, many = (corrected(900.0, measured(256, 300.0, error)) for error in (0.2, 0.01))
    assert 295 < many < few < 900
    assert many == pytest.approx(300.0, rel=0.02)
    assert corrected(900.0, measured(256, 300.0, 0.01), measured(128, 300.0, 0.01)) == pytest.approx(300.0, rel=0.02)


def test_a_training_that_tells_little_changes_little() -> None:
    # with twice the batch, hardly more samples are expected, and seeds scatter by as much
    assert corrected(300.0, SamplesRatio(64, 0.95, 0.1)) == pytest.approx(300.0, rel=0.3)


def test_a_training_that_does_not_reach_the_target_sets_an_upper_limit() -> None:
    assert corrected(100.0, measured(256, 300.0, 0.01, is_lower_limit=True)) == pytest.approx(100.0, rel=0.02)
    assert corrected(900.0, measured(256, 300.0, 0.01, is_lower_limit=True)) == pytest.approx(300.0, rel=0.02)


def test_branches_that_lose_nothing_leave_all_sizes_beyond_them_possible() -> None:
    nothing_lost = critical_batch(NO_LOSS, OWN, TARGET)
    exact = [measured(2048, 20_000.0, 0.001)]
    assert refined(nothing_lost, OWN, [SamplesRatio(2048, 1.0, 0.1)], max(SIZES)).size == inf
    assert refined(nothing_lost, OWN, exact, max(SIZES)).size == pytest.approx(20_000, rel=0.02)
    below = refined(nothing_lost, OWN, [measured(512, 300.0, 0.02)], max(SIZES)).size
    assert below == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize("scatter", [0.12, 0.2])
@pytest.mark.parametrize(("size", "seeds"), [(256, 3), (512, 3), (256, 1)])
def test_the_interval_holds_in_95_of_100_studies(size: int, seeds: int, scatter: float) -> None:
    """Where the scatter is that of a few seeds, which is not known any better in a study."""
    draw, covered, studies = np.random.default_rng(0), 0, 400
    for _ in range(studies):
        branches = branches_of(300.0 * exp(draw.normal(0, BRANCH_ERROR)))
        logs = -log(expected_efficiency(size, OWN, 300.0)) + draw.normal(0, scatter, seeds)
        error, freedom = moderated_scatter(logs.tolist()) / sqrt(seeds), USUAL_FREEDOM + seeds - 1
        trained = [SamplesRatio(size, exp(logs.mean()), error, freedom)]
        low, high = critical_batch_of(branches, OWN, TARGET, trained).interval or (0.0, 0.0)
        covered += low <= 300.0 <= high
    assert covered >= 0.91 * studies


def test_trainings_narrow_the_interval() -> None:
    def width(*trained: SamplesRatio) -> float:
        low, high = critical_batch_of(branches_of(300.0), OWN, TARGET, trained).interval or (0.0, inf)
        return log(high / low)

    assert width() == pytest.approx(2 * 1.96 * BRANCH_ERROR, rel=0.02)
    assert width(measured(512, 300.0, 0.05)) < width(measured(128, 300.0, 0.05)) < width()


def test_branches_that_lose_nothing_have_an_interval_without_an_upper_end() -> None:
    found = critical_batch_of(NO_LOSS, OWN, TARGET)
    assert (found.size, found.interval and found.interval[1]) == (inf, inf)
    below = critical_batch_of(NO_LOSS, OWN, TARGET, [measured(256, 100.0, 0.02)])
    assert below.interval is not None
    assert below.interval[0] < below.size < below.interval[1] < 200


def answer(*losses: float, diverged: bool = False) -> dict[str, Any]:
    """Of a branch that was evaluated every 100 samples."""
    evaluations = [(100 * number, {"val/loss": loss}) for number, loss in enumerate(losses, 1)]
    return {"evaluations": evaluations, "samples": 100 * len(losses), "diverged": diverged}


CURVE = LossCurve([100, 200, 300, 400], [4.0, 3.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("losses", "from_start", "from_checkpoint"),
    [
        ((4.0, 3.0, 2.0, 1.0), 1.0, 1.0),
        ((4.0, nan, 2.0, 1.0), 1.0, 1.0),
        ((inf, 3.0, 2.0, 1.0), 1.0, 1.0),
        ((nan, nan, nan, 1.0), 1.0, 0.0),  # how far it was in the middle is not known
        ((4.0, 3.0, 2.0, nan), 0.0, 0.0),
        ((nan, nan), 0.0, 0.0),
        ((), 0.0, 0.0),
    ],
)
def test_losses_that_are_not_finite_say_nothing(
    losses: tuple[float, ...], from_start: float, from_checkpoint: float
) -> None:
    values = answer(*losses)
    begun = branch_from_start(CURVE, [1.0], 64, "linear", values)
    resumed = branch_of(0, CURVE, 64, "linear", values)
    assert (begun.efficiency, resumed.efficiency) == (pytest.approx(from_start), pytest.approx(from_checkpoint))
    assert all(each.loss == 1.0 or (each.efficiency, each.loss) == (0.0, inf) for each in (begun, resumed))


def test_a_branch_that_diverged_has_no_efficiency() -> None:
    values = answer(4.0, 3.0, diverged=True)
    found = [branch_from_start(CURVE, [1.0], 64, "linear", values), branch_of(0, CURVE, 64, "linear", values)]
    assert [(each.efficiency, each.loss) for each in found] == [(0.0, inf)] * 2


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


def ended(*losses: tuple[int, float], diverged: bool = False) -> dict[str, object]:
    """The answer to the training of a branch."""
    evaluations = [(samples, {"val/loss": loss}) for samples, loss in losses]
    return {"evaluations": evaluations, "samples": losses[-1][0], "diverged": diverged}


def test_a_branch_from_the_start_is_compared_with_the_whole_training() -> None:
    samples = list(range(100, 5100, 100))
    curve, goal = LossCurve(samples, [100.0 / each for each in samples]), 0.05  # after 2,000 samples
    reached = branch_from_start(curve, [goal], 64, "linear", ended((2000, 0.07), (3000, 0.05), (4000, 0.03)))
    assert reached.efficiency == pytest.approx(2000 / 3000, rel=1e-3)
    given_up = branch_from_start(curve, [goal], 64, "linear", ended((2000, 0.2), (4000, 0.1)))
    assert given_up.efficiency == pytest.approx(1000 / 4000, rel=1e-3)
    assert branch_from_start(curve, [goal], 64, "linear", ended((2000, inf), diverged=True)).efficiency == 0.0


def test_one_lucky_loss_of_a_branch_counts_little() -> None:
    samples = list(range(100, 5100, 100))
    curve, goals = LossCurve(samples, [100.0 / each for each in samples]), [0.125, 0.1, 0.05]  # after 800, 1,000, 2,000
    even = ended((1600, 0.125), (2000, 0.1), (4000, 0.05))
    lucky = ended((1600, 0.125), (2000, 0.1), (2100, 0.05))
    found = [branch_from_start(curve, goals, 64, "linear", each).efficiency for each in (even, lucky)]
    assert found == [pytest.approx(0.5, rel=1e-3), pytest.approx(0.5 * (40 / 21) ** (1 / 3), rel=1e-3)]
    given_up = branch_from_start(curve, goals, 64, "linear", ended((1600, 0.125), (4000, 0.11)))
    at_its_end = 100 / 0.11 / 4000
    assert given_up.efficiency == pytest.approx((0.5 * at_its_end**2) ** (1 / 3), rel=1e-3)


def test_a_branch_from_the_start_whose_loss_rises_has_hardly_used_its_samples() -> None:
    samples = list(range(100, 5100, 100))
    curve = LossCurve(samples, [100.0 / each for each in samples])
    worse = branch_from_start(curve, [0.05], 64, "linear", ended((1000, 2.0), (2000, 3.0), (4000, 4.0)))
    assert worse.efficiency == pytest.approx(100 / 4000)
    risen = branch_from_start(curve, [0.05], 64, "linear", ended((1000, 0.2), (2000, 0.4), (4000, 0.4)))
    assert risen.efficiency < 500 / 4000


def test_the_usual_rule_is_taken_as_far_as_it_is_nearly_the_best() -> None:
    linear, root = (
        [Branch(0, size, rule, 1024, 1.0, value) for size, value in zip(SIZES, values, strict=True)]
        for rule, values in (("linear", (0.9, 0.9, 0.2, 0.0)), ("sqrt", (0.95, 0.9, 0.7, 0.5)))
    )
    found = rules_that_held([*linear, *root], "linear", OWN)
    assert found == LrRules(((64, "linear"), (128, "linear"), (256, "sqrt"), (512, "sqrt")))
    assert (found.holds_to, found.text) == (128, "linear up to a batch of 128, sqrt from 256 to 512")
    assert [found.at(size) for size in (32, 192, 256, 1024)] == ["linear", "linear", "sqrt", "sqrt"]
    assert rules_that_held([], "sqrt", OWN).holds_to == OWN
    # with 16 times the batch, neither of them takes fewer steps than the config's own batch
    broken = [Branch(0, size, "linear", 1024, 1.0, value) for size, value in ((128, 0.6), (512, 0.05))]
    assert rules_that_held(broken, "linear", OWN).text == "linear up to a batch of 128"
