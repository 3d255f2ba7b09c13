"""Combinations of techniques: the best of each family, and the config with all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.techniques import Technique, changed

KNEE = 0.97
"""Share of the best batch size's speed that is enough: the smallest size that reaches it is chosen. Beyond the knee, a
larger batch costs accuracy and memory, and gains nothing."""


def best_of_families(gained: Sequence[tuple[Technique, float]]) -> list[Technique]:
    """Return the best technique of each family, the best of all first; of batch sizes, the smallest at the knee.

    Args:
        gained: techniques that gain, with their speedup.
    """
    families: dict[str, list[tuple[Technique, float]]] = {}
    for technique, speedup in gained:
        families.setdefault(technique.family, []).append((technique, speedup))
    chosen = [_best(each) for each in families.values()]
    return [technique for technique, _ in sorted(chosen, key=lambda each: -each[1])]


def _best(members: Sequence[tuple[Technique, float]]) -> tuple[Technique, float]:
    best = max(members, key=lambda each: each[1])
    if best[0].family != "batch":
        return best
    enough = [each for each in members if each[1] >= KNEE * best[1]]
    return min(enough, key=lambda each: size_of(each[0]))


def size_of(technique: Technique) -> int:
    """Return the global batch of a technique of the family `batch`."""
    return int(technique.overrides["data.global_batch_size"])


def merged(techniques: Sequence[Technique]) -> dict[str, Any]:
    """Return the overrides of all techniques together; of two that set the same field, the first counts."""
    overrides: dict[str, Any] = {}
    for technique in techniques:
        overrides = {**technique.overrides, **overrides}
    return overrides


def together(config: ExperimentConfig, techniques: Sequence[Technique]) -> tuple[ExperimentConfig, list[Technique]]:
    """Return the config with all compatible techniques, and the list of these. A technique is left out if it
    contradicts an earlier one, or sets one of its fields to a different value."""
    taken: list[Technique] = []
    for technique in techniques:
        if any(technique.overrides[key] != value for key, value in merged(taken).items() if key in technique.overrides):
            continue
        try:
            changed(config, merged([*taken, technique]))
        except ConfigError:
            continue
        taken.append(technique)
    return changed(config, merged(taken)) if taken else config, taken


def speedups(screened: Mapping[str, ScreenedPair], techniques: Sequence[Technique]) -> list[tuple[Technique, float]]:
    """Return the techniques whose pair showed a gain, with the speedup."""
    gained = []
    for technique in techniques:
        pair = screened.get(technique.name)
        if pair is not None and not pair.problem and pair.seen == "faster":
            gained.append((technique, pair.interval.estimate))
    return gained
