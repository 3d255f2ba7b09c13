"""Texts for hints: values as shown to the user, and the valid value nearest to an invalid one."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

NOT_FINITE = "a saved config cannot hold it: write text, such as 'inf', and call float() on it in your code"
"""Hint for a number in the arguments of user code that is not finite."""
_LONG_LIST = 12
_SAID_TRUE = ("on", "yes", "y", "true")
_SAID_FALSE = ("off", "no", "n", "false")


def nearest(word: str, choices: list[str], cutoff: float = 0.6) -> str | None:
    """Return the choice that is most similar to a word; None if no choice is similar."""
    plain = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word.lower()[:100], plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def show(value: Any) -> str:
    """Return a value as it is written in a config file, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
    if not isinstance(value, str | int | float):
        return f"a Python {type(value).__name__}"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def choices(error: ErrorDetails) -> list[str]:
    """Return the values that a choice allows, parsed from pydantic's message; empty for other errors."""
    if error["type"] != "literal_error":
        return []
    return re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))


def either(words: list[str]) -> str:
    """Return `a or b`; `one of a, b, c` for more than two."""
    return " or ".join(words) if len(words) <= 2 else f"one of {', '.join(words)}"


def listed(names: list[str]) -> str:
    """Return all names; of more than 12, the first five and the number of others."""
    if len(names) <= _LONG_LIST:
        return ", ".join(names) or "none yet"
    return f"{', '.join(names[:5])} and {len(names) - 5} more"


def near_and_all(word: str, names: list[str]) -> str:
    """Return the nearest name and all names; of more than 12, the nearest five and the number of all."""
    best = nearest(word, names)
    start = f"did you mean {best}? " if best else ""
    own = "or path: 'my_pkg.module:function' for your own"
    if len(names) <= _LONG_LIST:
        return f"{start}there are: {', '.join(names)}; {own}"
    near = get_close_matches(word[:100], names, n=5, cutoff=0.0)
    return f"{start}the nearest of {len(names)} are: {', '.join(near)}; {own}"


def hint_for(value: Any, kinds: Iterable[str], allowed: list[str]) -> str:
    """Return a hint with a replacement for an invalid value; empty if there is no suggestion.

    Args:
        value: the invalid value.
        kinds: types of pydantic's errors about the value.
        allowed: the allowed choices; empty if any value of the right type is allowed.
    """
    meant = str(value).lower()
    if "none" in allowed and (value is None or meant in _SAID_FALSE):
        return "write none"
    if "bool_type" in kinds and meant in _SAID_TRUE + _SAID_FALSE:
        return f"write {'true' if meant in _SAID_TRUE else 'false'}"
    if allowed and isinstance(value, str | int | float) and not isinstance(value, bool):
        found = _near_choice(meant, allowed)
        if found:
            return f"did you mean {found}?"
    if "model_type" in kinds:
        return "leave the key out for the defaults, or write its fields below it, indented"
    return _converted(value, set(kinds))


def _near_choice(word: str, allowed: list[str]) -> str | None:
    inside = [choice for choice in allowed if word == choice.lower() or choice.lower().startswith(word)]
    return inside[0] if inside else nearest(word, allowed, cutoff=0.5)


def _converted(value: Any, kinds: set[str]) -> str:
    if "string_type" in kinds and isinstance(value, int | float):
        return f"put it in quotes: '{show(value)}'"
    if "list_type" in kinds and isinstance(value, str | int | float):
        return f"write [{str(value)[:60]}]"
    if not kinds & {"int_type", "int_from_float", "float_type"}:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[-+]?0\d{1,40}", value, re.ASCII):
        # Leading zeros make it text, with quotes and without.
        return f"write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", value, re.ASCII):
        return f"write {value[:40]} without quotes"
    return ""
