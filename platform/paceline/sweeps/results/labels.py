"""Short words for a sweep's settings, values and states, for the terminal, notebooks and pictures."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.redaction import redact
from paceline.reports.text import number_text

LONGEST_VALUE = 24
"""Characters of a value that are shown."""
LONGEST_REASON = 60
"""Characters of a reason in the text of a trial."""
_STATE_WORDS = {"oom": "out of memory", "predicted_oom": "predicted out of memory"}
_SAYING_LITTLE = ("name", "path")
"""Last parts of keys that do not say what they are about."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The shortest ending that no two keys share, by dotted key: `global_batch_size` of `data.global_batch_size`."""
    parts = {key: key.split(".") for key in keys}
    return {key: _shortest(own, [other for k, other in parts.items() if k != key]) for key, own in parts.items()}


def _shortest(own: list[str], others: list[list[str]]) -> str:
    for length in range(2 if own[-1] in _SAYING_LITTLE else 1, len(own) + 1):
        if not any(other[-length:] == own[-length:] for other in others):
            return ".".join(own[-length:])
    return ".".join(own)


def value_text(value: Any) -> str:
    """A value of an axis in few characters: `256`, `0.001`, `linear`, `true`, `[1, 2]`."""
    if isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, str):
        text = value if value.isprintable() else ascii(value)
    else:
        text = json.dumps(value, default=repr)
    return text if len(text) <= LONGEST_VALUE else shortened(redact(text), LONGEST_VALUE)  # half a secret is not known


def is_number(value: Any) -> bool:
    """Return True if a value of an axis is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def setting_text(params: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """All params in one line: `global_batch_size=256, lr_scaling=linear`."""
    return ", ".join(f"{names.get(key, key)}={value_text(value)}" for key, value in params.items())


def state_text(state: str) -> str:
    """A state in words: `oom` becomes `out of memory`."""
    return _STATE_WORDS.get(state, state)


def outcome_text(state: str, broken: Sequence[str]) -> str:
    """A state in words, of a finished trial with the constraints that it breaks: `infeasible: val/loss < 0.5`."""
    return f"infeasible: {', '.join(broken)}" if broken and state == "finished" else state_text(state)


def spread_text(mean: float, std: float, n: int) -> str:
    """A mean, with its deviation where several trials were finished: `0.9731 ± 0.0012`."""
    shown = std if std > 1e-12 * abs(mean) else 0.0  # equal values differ from their own mean by rounding
    return number_text(mean) + (f" ± {shown:.2g}" if n > 1 else "")


def shortened(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits into `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
