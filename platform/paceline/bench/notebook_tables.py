"""Result of a study as HTML, as a notebook shows it."""

from collections.abc import Sequence
from html import escape

from paceline.redaction import redact

_LEFT = "style='text-align:left'"


def notebook_tables(
    summary: str, rows: Sequence[tuple[str, str]], heading: Sequence[str], body: Sequence[Sequence[str]]
) -> str:
    """Return a summary, a table of labels and texts, and a table below it; escaped, and without secrets."""
    facts = "".join(f"<tr><th {_LEFT}>{escape(label)}</th>{_cells([text])}</tr>" for label, text in rows)
    titles = "".join(f"<th>{escape(each)}</th>" for each in heading)
    lines = "".join(f"<tr>{_cells(row)}</tr>" for row in body)
    return f"<p>{escape(redact(summary))}</p><table>{facts}</table><table><tr>{titles}</tr>{lines}</table>"


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"<td {_LEFT}>{escape(redact(text))}</td>" for text in texts)
