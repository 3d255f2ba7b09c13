"""Cause, fix and an example for each code of an error, a warning or a finding of lint.

The texts are the Markdown files beside this module, one file per group: a heading, an introduction, and a section for
each code. `paceline explain CODE` prints a section, and `docs/reference/errors.md` contains all of them.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

PARTS = ("Cause", "Fix", "Example")
_CODE = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True)
class Explanation:
    """The section of a code."""

    code: str
    cause: str
    fix: str
    example: str
    """Example of input that leads to the message, and its correction."""


@dataclass(frozen=True)
class Group:
    """The codes about one subject, such as the config."""

    title: str
    introduction: str
    explanations: tuple[Explanation, ...]


@cache
def groups() -> tuple[Group, ...]:
    """Return all groups in the order of their files, whose names begin with a number."""
    pages = sorted(
        (file for file in files(__name__).iterdir() if file.name.endswith(".md")), key=lambda file: file.name
    )
    return tuple(_group(page.read_text("utf-8")) for page in pages)


def explanations() -> dict[str, Explanation]:
    """Return the section of each code."""
    return {each.code: each for group in groups() for each in group.explanations}


def near_codes(text: str) -> list[str]:
    """Return the codes that a text resembles most, the nearest first."""
    codes = list(explanations())
    containing = [code for code in codes if text and text in code]
    return list(dict.fromkeys([*get_close_matches(text, codes), *containing]))[:3]


def _group(page: str) -> Group:
    head, *sections = _CODE.split(page)
    title, _, introduction = head.strip().partition("\n\n")
    return Group(title.removeprefix("# "), _on_one_line(introduction), tuple(map(_explanation, sections)))


def _explanation(section: str) -> Explanation:
    code, *paragraphs = (_on_one_line(each) for each in section.strip().split("\n\n"))
    found = dict(paragraph.split(": ", 1) for paragraph in paragraphs)
    if tuple(found) != PARTS:
        raise ValueError(f"the section {code} has {', '.join(found)}: write {', '.join(PARTS)}")
    return Explanation(code, *found.values())


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
