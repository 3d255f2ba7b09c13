"""Text and numbers as Markdown shows them on a run's page in MLflow."""

import re
from html import escape

from paceline.redaction import redact

_ADDRESS = re.compile(r"://|www(?=\.)|@", re.IGNORECASE)
"""Where a Markdown reader takes plain text for a link."""


def number(value: float) -> str:
    """A value as a table shows it: with four digits, or in full from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def escaped(text: str) -> str:
    """Text as one line of Markdown that shows it and does nothing else: no table cell, HTML, link or address.

    Secrets are hidden before: they would not be known any more.
    """
    line = escape(" ".join(redact(text).split()), quote=False)  # escaped quotes would be escaped once more below
    return _ADDRESS.sub("\\g<0>\u200b", re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", line))


def code(text: str) -> str:
    """Text as a block of code that it cannot end, without secrets."""
    return "```\n" + redact(text).replace("```", "'''") + "\n```"
