"""Which techniques go together: the best of each family, those that still help beside the others, and no more."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError
from paceline.tuneups.arms import Arm, changed
from paceline.tuneups.ring import Contest

KNEE = 0.97
"""Of a family whose members are sizes, the smallest is chosen that has this share of the best one's speed: beyond the
knee a larger batch costs accuracy and memory, and gains nothing."""


def best_of_families(gained: Sequence[tuple[Arm, float]]) -> list[Arm]:
    """The best arm of each family, the best of all first; of batches the smallest beyond the knee.

    Args:
        gained: arms that gain, with their speedup.
    """
    families: dict[str, list[tuple[Arm, float]]] = {}
    for arm, speedup in gained:
        families.setdefault(arm.family, []).append((arm, speedup))
    chosen = [_best(each) for each in families.values()]
    return [arm for arm, _ in sorted(chosen, key=lambda each: -each[1])]


def _best(members: Sequence[tuple[Arm, float]]) -> tuple[Arm, float]:
    best = max(members, key=lambda each: each[1])
    if best[0].family != "batch":
        return best
    enough = [each for each in members if each[1] >= KNEE * best[1]]
    return min(enough, key=lambda each: size_of(each[0]))


def size_of(arm: Arm) -> int:
    """The global batch of an arm of the family `batch`."""
    return int(arm.overrides["data.global_batch_size"])


def merged(arms: Sequence[Arm]) -> dict[str, Any]:
    """What the arms set, all together; of two that set the same field, the first counts."""
    overrides: dict[str, Any] = {}
    for arm in arms:
        overrides = {**arm.overrides, **overrides}
    return overrides


def together(config: ExperimentConfig, arms: Sequence[Arm]) -> tuple[ExperimentConfig, list[Arm]]:
    """The config with all arms that go together, and which these are; one that contradicts those before is left out,
    or sets one of their fields to something else."""
    taken: list[Arm] = []
    for arm in arms:
        if any(arm.overrides[key] != value for key, value in merged(taken).items() if key in arm.overrides):
            continue
        try:
            changed(config, merged([*taken, arm]))
        except ConfigError:
            continue
        taken.append(arm)
    return changed(config, merged(taken)) if taken else config, taken


def speedups(contests: Mapping[str, Contest], arms: Sequence[Arm]) -> list[tuple[Arm, float]]:
    """The arms whose contest ended in a gain, with the speedup."""
    gained = []
    for arm in arms:
        contest = contests.get(arm.name)
        if contest is not None and not contest.problem and contest.standing.final == "gain":
            gained.append((arm, contest.standing.interval.estimate))
    return gained
