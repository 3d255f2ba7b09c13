"""Hooks of `mkdocs build`."""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Drop the second word of a code block's language: `sh no-run` is a language for the tests."""
    return re.sub(r"^(\s*```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)
