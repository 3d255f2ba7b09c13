"""Errors of Paceline's own that a call is to raise."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from paceline.errors import PacelineError

Kind = TypeVar("Kind", bound=PacelineError)


def refused(kind: type[Kind], call: Callable[..., object], /, *given: Any, **named: Any) -> Kind:
    """The error of a kind that a call raises; what it is given is made outside, and may raise none."""
    with pytest.raises(kind) as caught:
        call(*given, **named)
    return caught.value
