"""Traceback of a failed trial: the line of user code in it, and the text that is kept."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paceline
from paceline.redaction import redact

MOST_CHARACTERS = 100_000
"""Of a traceback that is kept; of a longer one, its beginning and its end."""
LONGEST_LINE = 1000
"""Characters of a line that are kept."""
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_OTHERS = (Path(paceline.__file__).parent, Path(os.__file__).parent)
"""Folders of code that is not the user's: Paceline's, and Python's own."""
_PACKAGES = {"site-packages", "dist-packages"}


def naming_its_place(ending: dict[str, Any]) -> dict[str, Any]:
    """How a trial ended; the reason of an error names the user's own line: `TypeError: no (mine.py:12 in build)`.

    To be called where the trial ran: only there it is known which folders hold other people's code.

    Args:
        ending: as `run_rank` returns it.
    """
    failure: Mapping[str, Any] = ending.get("failure", {})
    place = own_place(failure.get("traceback_text", "")) if failure.get("kind") == "error" else ""
    if not place:
        return ending
    first, *others = failure["reason"].split("\n")  # further lines may be a traceback of their own
    return {**ending, "failure": {**failure, "reason": "\n".join([f"{first} ({place})", *others])}}


def own_place(traceback_text: str) -> str:
    """The innermost line of the user's own code, such as `mine.py:12 in build`; empty without one."""
    own = [frame for frame in _FRAME.findall(traceback_text) if _is_own(frame[0])]
    if not own:
        return ""
    file, line, function = own[-1]
    return f"{Path(file).name}:{line} in {function}"


def kept_text(traceback_text: str) -> str:
    """A traceback as it may be stored: without secrets, and of about `MOST_CHARACTERS` at the most."""
    lines = traceback_text.splitlines()
    head = _fitting(lines, MOST_CHARACTERS // 2)
    tail = _fitting(lines[len(head) :][::-1], MOST_CHARACTERS // 2)[::-1]
    left_out = len(lines) - len(head) - len(tail)
    return redact("\n".join([*head, *([f"... {left_out} lines are left out ..."] if left_out else []), *tail])) + "\n"


def _is_own(file: str) -> bool:
    path = Path(file)
    is_made_up = file.startswith("<")  # such as <frozen importlib._bootstrap>
    return not (is_made_up or _PACKAGES.intersection(path.parts) or any(path.is_relative_to(one) for one in _OTHERS))


def _fitting(lines: list[str], room: int) -> list[str]:
    """The first lines that have room, each shortened if need be."""
    kept: list[str] = []
    for line in map(_shortened, lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def _shortened(line: str) -> str:
    # at a blank: half a secret would not be known for one any more
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE].rpartition(' ')[0]} ..."
