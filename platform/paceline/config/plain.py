"""Checks for values that a saved config can hold: text of valid characters, and finite numbers."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticKnownError

Location = tuple[str | int, ...]


def check_args(args: dict[str, Any]) -> dict[str, Any]:
    """Refuse numbers and text that cannot be saved, anywhere in the arguments of user code.

    Raises:
        ValidationError: some values cannot be saved; it has the place of each below `args`.
    """
    found = [InitErrorDetails(type=kind, loc=location, input=value) for kind, location, value in _unsavable(args, ())]
    if found:
        raise ValidationError.from_exception_data("args", found)
    return args


def check_text(value: Any) -> Any:
    """Refuse text with a NUL character, which paths, addresses and names must not contain.

    Raises:
        PydanticKnownError: the text contains a NUL character.
    """
    if isinstance(value, str) and "\0" in value:
        raise PydanticKnownError("string_unicode")
    return value


def _unsavable(value: Any, location: Location) -> Iterator[tuple[str, Location, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and not _is_unicode(key):
                yield "string_unicode", location, key
            else:
                yield from _unsavable(item, (*location, key if isinstance(key, int) else str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unsavable(item, (*location, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield "finite_number", location, value
    elif isinstance(value, str) and not _is_unicode(value):
        yield "string_unicode", location, value


def _is_unicode(text: str) -> bool:
    """Return True if a text has no lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
