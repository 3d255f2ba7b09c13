"""Calls of torch's functions, as a trace notes them."""

from typing import NamedTuple

from paceline.linting.own_code import CodeLine

ATTRIBUTE = "attribute"
"""Stands for the function that has made a tensor, where that is one that a module has as a plain attribute."""


class LintedCall(NamedTuple):
    """One call of a function of torch."""

    name: str
    line: CodeLine | None
    """The user's line that calls it; None where a layer of torch or another library does."""
    module: str
    """Name of the innermost module that is being called, such as `model.encoder`; empty outside of all."""
    detail: str = ""

    @property
    def place(self) -> str:
        """The place in the code, for the user."""
        return str(self.line) if self.line is not None else self.module or "task"


class Flow(NamedTuple):
    """A result that goes into another function as it is."""

    source: LintedCall
    into: LintedCall
