"""Contradictions between fields that are each valid."""

from typing import NamedTuple

from paceline.errors import Problem


class Disagreement(NamedTuple):
    """Contradiction between fields."""

    problem: Problem
    keys: tuple[str, ...]
    """Dotted keys of all fields that contradict each other; the key of `problem` is the one to change."""


def contradiction(reason: str, hint: str, *keys: str) -> Disagreement:
    """Return a contradiction between the fields `keys`; the first is the one to change."""
    return Disagreement(Problem("contradiction", reason, keys[0], hint=hint), keys)
