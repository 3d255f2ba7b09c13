"""Findings of lint: one fault of a model or a config, with its reason and its hint."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning"]
"""`error`: training ends or goes wrong. `warning`: it is slower or worse than it need be."""


class Fault(NamedTuple):
    """A fault as its rule reports it: a `Finding` without the rule's name."""

    place: str
    reason: str
    hint: str
    severity: Severity = "warning"


@dataclass(frozen=True)
class Finding:
    """One fault that was found."""

    rule: str
    """The rule that found it, such as `bias-before-norm`."""
    place: str
    """Where: `file:line` of the user's code, a module such as `model.conv1`, or a key of the config."""
    reason: str
    """What is wrong with it, in a sentence."""
    hint: str
    """What to do about it."""
    severity: Severity
    """`error`: training ends or goes wrong. `warning`: it is slower or worse than it need be."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)
