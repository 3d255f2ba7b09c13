"""Whole tune-ups on a simulated bench: how often they are wrong, and how often they find what is there.

Each has 16 techniques, and the default budget. Trainers of the same config differ in speed from build to build, as they
do by where their memory lies.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paceline.tuneups.outcome import Findings, TechniqueResult
from support.toys import toy_config
from support.tuneup.simulated_bench import tuned

TECHNIQUES = [f"t{number}" for number in range(16)]
BUDGET_SECONDS = 600.0
FEW = 20
MANY = 1000
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


def simulated(seed: int, between_builds: float, effects: Mapping[str, float]) -> Findings:
    """The findings of one tune-up.

    Args:
        between_builds: standard deviation of the log ratio of two equal trainers.
        effects: speedup of those techniques that have one.
    """
    section = {
        "techniques": {name: {f"model.args.{name}": 1} for name in TECHNIQUES},
        "only": TECHNIQUES,
        "budget_seconds": BUDGET_SECONDS,
    }
    changes = {"seed": seed, "trainer.precision": "32-true", "scaling.num_workers": 1, "tuneup": section}

    def speed(tree: dict[str, Any]) -> float:
        product = 1000.0
        for name in tree["model"]["args"]:
            product *= effects.get(name, 1.0)
        return product

    config = toy_config().with_overrides(changes)
    done = tuned(speed, lambda tree: 0.95, config, seed=seed, between_builds=between_builds)
    assert done.clock.now < BUDGET_SECONDS
    return done.findings


def of(found: Findings, name: str) -> TechniqueResult:
    return next(technique for technique in found.techniques if technique.name == name)


def others(found: Findings) -> list[TechniqueResult]:
    """Those that do nothing."""
    return [of(found, name) for name in TECHNIQUES if name not in ("t3", "t7")]


@pytest.mark.parametrize(
    ("between_builds", "tuneups"),
    [(0.02, FEW), *(pytest.param(each, MANY, marks=SLOW) for each in (0.0, 0.01, 0.02))],
)
def test_what_does_nothing_gets_no_verdict_and_is_not_recommended(
    between_builds: float, tuneups: int, record_property: Callable[[str, object], None]
) -> None:
    found = [simulated(seed, between_builds, {}) for seed in range(tuneups)]
    wrong = [each for each in found if any(of(each, name).verdict != "no gain" for name in TECHNIQUES)]
    recommended = [each for each in found if each.recommended]
    record_property("false verdicts, recommendations", (len(wrong), len(recommended)))
    assert len(wrong) <= max(1, 0.05 * tuneups)
    assert len(recommended) <= max(1, 0.02 * tuneups)
    assert all(each.speedup_interval is not None and each.speedup_interval[0] > 1 for each in recommended)


FIVE_PERCENT = {"t3": 1.05, "t7": 1 / 1.05}
TWENTY_PERCENT = {"t3": 1.2}


@pytest.mark.parametrize(
    ("effects", "share", "between_builds", "tuneups"),
    [
        (FIVE_PERCENT, 0.9, 0.01, FEW),
        pytest.param(TWENTY_PERCENT, 0.99, 0.02, FEW, marks=SLOW),
        pytest.param(FIVE_PERCENT, 0.9, 0.01, MANY, marks=SLOW),
        *(pytest.param(TWENTY_PERCENT, 0.99, each, MANY, marks=SLOW) for each in (0.01, 0.02)),
    ],
)
def test_what_has_an_effect_is_found_beside_what_does_nothing(
    effects: dict[str, float],
    share: float,
    between_builds: float,
    tuneups: int,
    record_property: Callable[[str, object], None],
) -> None:
    found = [simulated(seed, between_builds, effects) for seed in range(tuneups)]
    counts = {
        "gain found": sum(of(each, "t3").verdict == "gain" for each in found),
        "regression found": sum(of(each, "t7").verdict == "regression" for each in found),
        "recommended": sum(of(each, "t3").is_recommended for each in found),
        "others recommended": sum(any(one.is_recommended for one in others(each)) for each in found),
        "false verdicts": sum(any(one.verdict != "no gain" for one in others(each)) for each in found),
    }
    for name, count in counts.items():
        record_property(name, count)
    assert counts["gain found"] >= share * tuneups
    assert counts["recommended"] >= share * tuneups
    assert counts["regression found"] >= share * tuneups * ("t7" in effects)
    assert counts["false verdicts"] <= max(1, 0.05 * tuneups)
