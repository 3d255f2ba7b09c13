"""Code of a user's own, as configs name it: `support.sweeps.user_code:build_net`."""

from typing import Any


class LargeModel:
    """A model factory that is an object, with a megabyte of data in it."""

    def __init__(self) -> None:
        self.data = b"x" * 1_000_000

    def __call__(self, **_: Any) -> None: ...


def build_net(width: int, depth: int = 2) -> None:
    """A model with a required and an optional argument."""


def build_other_net(size: int = 1) -> None:
    """A model with another argument."""


def build_anything(**any_names: Any) -> None:
    """A model or a data set with any arguments; its size is known only when it is loaded."""
