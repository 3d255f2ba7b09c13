"""Entries of a journal that hold one number each."""

from paceline.tracking.journal import Journal


def items(*values: int) -> list[tuple[str, dict[str, int]]]:
    """What `Journal.append` takes."""
    return [("own", {"v": value}) for value in values]


def numbers(journal: Journal) -> list[tuple[int, int]]:
    """Number and value of each entry."""
    return [(entry.sequence, entry.content["v"]) for entry in journal.read()]
