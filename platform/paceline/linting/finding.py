"""Findings of lint: one fault of a model or a config, with its reason and its hint."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning"]
"""`error`: training fails or gives wrong results. `warning`: it is slower or worse than necessary."""


class Fault(NamedTuple):
    """A fault as its rule reports it: a `Finding` without the rule's name."""

    place: str
    reason: str
    hint: str
    severity: Severity = "warning"


@dataclass(frozen=True)
class Finding:
    """One fault found by lint."""

    rule: str
    """Name of the rule that found it, such as `bias-before-norm`."""
    place: str
    """Place of the fault: `file:line` of the user's code, a module such as `model.conv1`, or a key of the config."""
    reason: str
    """Description of the fault, in one sentence."""
    hint: str
    """Fix for the fault."""
    severity: Severity
    """`error`: training fails or gives wrong results. `warning`: it is slower or worse than necessary."""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)
