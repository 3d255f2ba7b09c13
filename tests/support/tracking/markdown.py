"""The parts of a note that a test looks at."""

import re


def table_of(note: str) -> list[list[str]]:
    """The cells of the first table, without its head."""
    rows = re.findall(r"(?:^\|.*\n?)+", note, re.MULTILINE)
    lines = rows[0].splitlines()[2:] if rows else []
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def blocks_of(note: str) -> list[str]:
    """What is in its blocks of code."""
    return [block.strip("\n") for block in note.split("```")[1::2]]


def outside_blocks(note: str) -> str:
    """What is not in a block of code."""
    return "".join(note.split("```")[::2])


def best_of(note: str) -> str:
    """The setting that a sweep's note begins with as the best one; empty where there is none."""
    found = re.search(r"^\*\*[^:*]+: (.+?)\*\*", note, re.MULTILINE)
    return found[1] if found else ""
