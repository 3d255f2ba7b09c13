"""Markdown of the notes on MLflow's pages: text, numbers, config changes and pictures."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from paceline.redaction import redact, redact_values

MOST_CHANGES = 20
LONGEST_VALUE = 60
"""Characters of a key or a value that are shown."""
_ADDRESS = re.compile(r"://|www(?=\.)|@", re.IGNORECASE)
"""Plain text that a Markdown reader takes for a link."""


def table_row(cells: Sequence[str]) -> str:
    """Return the row of a table."""
    return f"| {' | '.join(cells)} |"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, which are escaped."""
    lines = [table_row([escaped(cell) for cell in row]) for row in (heading, *rows)]
    return "\n".join([lines[0], "|---" * len(heading) + "|", *lines[1:]])


def escaped(text: str) -> str:
    """Return text as one line of Markdown that only shows it: no table cell, HTML, link or address.

    Secrets are hidden before: they would not be known any more.
    """
    line = escape(" ".join(redact(text).split()), quote=False)  # escaped quotes would be escaped again below
    return _ADDRESS.sub("\\g<0>\u200b", re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", line))


def code(text: str) -> str:
    """Return text as a block of code that it cannot end, without secrets."""
    return "```\n" + redact(text).replace("```", "'''") + "\n```"


def changes_part(changes: Mapping[str, tuple[str, str]]) -> str:
    """Return the values of the best config that differ from the sweep's own, as YAML with the old value beside each.

    Args:
        changes: dotted key to the values before and after, as YAML has them.
    """
    if not changes:
        return "The best config is the sweep's own, unchanged."
    before, after = (redact_values({key: pair[place] for key, pair in changes.items()}) for place in (0, 1))
    lines = [f"{_cut(key)}: {_cut(after[key])}  # was {_cut(before[key])}" for key in changes]
    left = len(lines) - MOST_CHANGES
    lines = [*lines[:MOST_CHANGES], *([f"# ... and {left} more"] if left > 0 else [])]
    return "What the best config (`best.yaml`) changes in the sweep's own:\n\n" + code("\n".join(lines))


def pictures_part(pictures: Mapping[str, str], run_id: str) -> str:
    """The pictures among a run's artifacts.

    Args:
        pictures: file name to what it shows.
        run_id: MLflow's id of the run; without one the pictures are named, and not shown.
    """
    if not pictures:
        return ""
    parts = ["Pictures, under Artifacts as well:"]
    for name, what in pictures.items():
        parts.append(f"**{escaped(name)}**: {escaped(what)}")
        if run_id:
            # relative to MLflow's page, so that it holds for every server
            parts.append(
                f"![{escaped(what)}](get-artifact?path={quote(name, safe='')}&run_uuid={quote(run_id, safe='')})"
            )
    return "\n\n".join(parts) if run_id else "\n".join([parts[0], "", *(f"- {part}" for part in parts[1:])])


def _cut(text: str) -> str:
    line = " ".join(redact(text).split())  # of a secret that is cut first, a part would stay
    return line if len(line) <= LONGEST_VALUE else line[: LONGEST_VALUE - 3] + "..."
