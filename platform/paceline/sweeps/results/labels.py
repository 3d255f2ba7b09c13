"""Short words for a sweep's settings, values and states, for the terminal, notebooks and pictures."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from paceline.sweeps.trials import Trial, TrialState

LONGEST_VALUE = 24
"""Characters of a value that are shown."""
_STATE_WORDS = {"oom": "out of memory", "predicted_oom": "predicted out of memory"}
_SAYING_LITTLE = ("name", "path")
"""Last parts of keys that do not say what they are about."""


def axis_keys(trials: Iterable[Trial]) -> list[str]:
    """The dotted keys that the trials vary, the seed left out, in the order in which they first come up."""
    return list(dict.fromkeys(key for trial in trials for key in trial.overrides if key != "seed"))


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
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def setting_text(overrides: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """All overrides in one line: `global_batch_size=256, lr_scaling=linear`."""
    return ", ".join(f"{names.get(key, key)}={value_text(value)}" for key, value in overrides.items())


def number_text(value: float) -> str:
    """A metric in four digits, or in full with separators from 1,000 on."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def state_text(state: str) -> str:
    """A state in words: `oom` becomes `out of memory`."""
    return _STATE_WORDS.get(state, state)


def counts_text(trials: Sequence[Trial], states: Sequence[str] = get_args(TrialState)) -> str:
    """How many trials are in each of the states, those that occur: `29 finished, 1 failed`."""
    counts = Counter[str](trial.state for trial in trials)
    return ", ".join(f"{counts[state]} {state_text(state)}" for state in states if counts[state])


def spread_text(mean: float, std: float, n: int) -> str:
    """A mean, with its deviation where several trials were finished: `0.9731 ± 0.0012`."""
    shown = std if std > 1e-12 * abs(mean) else 0.0  # equal values differ from their own mean by rounding
    return number_text(mean) + (f" ± {shown:.2g}" if n > 1 else "")
