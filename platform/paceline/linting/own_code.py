"""The lines of user code on the stack."""

import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from paceline._compat.torch import dispatch_files
from paceline.config.own_files import is_own as is_own
from paceline.config.own_files import shown

_TORCH = str(Path(torch.__file__).resolve().parent)
_THROUGH = (
    *dispatch_files(),
    *("overrides.py", "nn/functional.py", "amp/", "cuda/amp/", "cpu/amp/"),
)
"""Files of torch between a call in somebody's code and what is called."""


class CodeLine(NamedTuple):
    """A line of the user's code."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return shown(self.file, self.number)


def nearest_line() -> CodeLine | None:
    """The innermost line of the user's code on the stack."""
    return next((_line(frame) for frame in _frames() if is_own(frame.f_code.co_filename)), None)


def calling_line() -> CodeLine | None:
    """The line that calls torch, if it is the user's; None where a layer or another library calls it."""
    frame = next((frame for frame in _frames() if not _is_between(frame.f_code.co_filename)), None)
    return _line(frame) if frame is not None and is_own(frame.f_code.co_filename) else None


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LINT):
            yield frame
        frame = frame.f_back


_LINT = str(Path(__file__).resolve().parent)


@lru_cache(maxsize=4096)
def _is_between(file: str) -> bool:
    inner = file.removeprefix(_TORCH).lstrip("/\\").replace("\\", "/")
    return file.startswith(_TORCH) and inner.startswith(_THROUGH)


def _line(frame: FrameType) -> CodeLine:
    return CodeLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
