"""The techniques of a tune-up as axes, and all combinations of their members that do not contradict themselves."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from paceline.study.tuneup.choosing import merged, together

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig
    from paceline.study.tuneup.arms import Arm

AS_IT_IS = "as it is"


class Combination(NamedTuple):
    """A member of each axis, or none of it."""

    name: str
    """Names of its techniques, or `as it is`; no other combination has it."""
    config: "ExperimentConfig"


class Product(NamedTuple):
    """All combinations of some axes."""

    axes: dict[str, list["Arm"]]
    """By family its techniques; each axis has one member more, the config as it is."""
    combinations: list[Combination]
    contradictory: int
    """How many are left out because two of their techniques set the same field, or exclude each other."""
    repeated: int
    """How many are left out because they come to the same config as another one."""
    with_savers: int
    """How many there would be with what is tried for memory, those that contradict themselves included."""


def axes_of(arms: Sequence["Arm"], with_savers: bool = False) -> dict[str, list["Arm"]]:
    """The techniques that are tried here, by family; those that are tried to save memory only on request."""
    axes: dict[str, list[Arm]] = {}
    for arm in arms:
        if not arm.why_not and (with_savers or not arm.saves_memory):
            axes.setdefault(arm.family, []).append(arm)
    return axes


def product_of(config: "ExperimentConfig", arms: Sequence["Arm"], seed: int = 0) -> Product:
    """All combinations of the techniques that are tried here, in an order drawn at random, the same for a seed."""
    axes = axes_of(arms)
    return _product(config, arms, axes, _choices(list(axes.values())), (), seed)


def savers_of(
    config: "ExperimentConfig", arms: Sequence["Arm"], others: Sequence[Combination], seed: int = 0
) -> Product:
    """All combinations with at least one technique that is tried to save memory, in an order drawn at random as well.

    Args:
        others: those without; what comes to the same config as one of them is left out, too.
    """
    axes = axes_of(arms, with_savers=True)
    choices = (chosen for chosen in _choices(list(axes.values())) if any(arm.saves_memory for arm in chosen))
    return _product(config, arms, axes, choices, others, seed)


def name_of(arms: Sequence["Arm"]) -> str:
    """The name of a combination."""
    return " + ".join(arm.name for arm in arms) or AS_IT_IS


def _product(
    config: "ExperimentConfig",
    arms: Sequence["Arm"],
    axes: dict[str, list["Arm"]],
    choices: Iterable[Sequence["Arm"]],
    others: Sequence[Combination],
    seed: int,
) -> Product:
    known = {each.config.model_dump_json() for each in others}
    combinations: list[Combination] = []
    contradictory = repeated = 0
    for chosen in choices:
        changed, taken = together(config, chosen)
        if len(taken) < len(chosen) or not _agree(chosen):
            contradictory += 1
            continue
        key = changed.model_dump_json()
        if key in known:
            repeated += 1
            continue
        known.add(key)
        combinations.append(Combination(name_of(chosen), changed))
    random.Random(seed).shuffle(combinations)
    with_savers = prod(1 + len(each) for each in axes_of(arms, with_savers=True).values())
    return Product(axes, combinations, contradictory, repeated, with_savers)


def _choices(axes: Sequence[Sequence["Arm"]]) -> Iterator[list["Arm"]]:
    for members in product(*([None, *axis] for axis in axes)):
        yield [arm for arm in members if arm is not None]


def _agree(arms: Sequence["Arm"]) -> bool:
    """Whether no two set a field to different values."""
    overrides = merged(arms)
    return all(overrides[key] == value for arm in arms for key, value in arm.overrides.items())
