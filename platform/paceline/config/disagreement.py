"""Fields that are each right, but not together."""

from typing import NamedTuple

from paceline.errors import Problem


class Disagreement(NamedTuple):
    """What is wrong with some fields together."""

    problem: Problem
    keys: tuple[str, ...]
    """All the fields that it is about; the problem's own key is the one to change."""


def contradiction(reason: str, hint: str, *keys: str) -> Disagreement:
    """A disagreement about `keys`, the first of which is the one to change."""
    return Disagreement(Problem("contradiction", reason, keys[0], hint=hint), keys)
