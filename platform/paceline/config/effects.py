"""Declarations beside a field: with which value of another field it has an effect, and with which it has none.

    shard_size: Annotated[int | None, OnlyWith("parallel.strategy", "fsdp")] = None

`ignored_settings` warns by them, and `tuneup` leaves out what it would change without effect.
"""

import json
from typing import Any


class OnlyWith:
    """The field is read only while the field `key` has one of some values."""

    def __init__(self, key: str, *values: Any) -> None:
        self.key = key
        self._values = values

    def reason(self, value: Any) -> str:
        """Return why the field has no effect while `key` has a value; empty where it has one."""
        if _is_among(value, self._values):
            return ""
        wanted = [_shown(each) for each in self._values]
        return f"{self.key} is neither {' nor '.join(wanted)}" if len(wanted) > 1 else f"{self.key} is not {wanted[0]}"


class NotWith:
    """The field is not read while the field `key` has one of some values.

    Args:
        because: the reason, where the value itself does not say it.
    """

    def __init__(self, key: str, *values: Any, because: str = "") -> None:
        self.key = key
        self._values = values
        self._because = because

    def reason(self, value: Any) -> str:
        """Return why the field has no effect while `key` has a value; empty where it has one."""
        if not _is_among(value, self._values):
            return ""
        return self._because or f"{self.key} is {_shown(value)}"


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(value == each and type(value) is type(each) for each in values)  # 0 is not false


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
