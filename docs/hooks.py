"""Hooks of `mkdocs build`."""

import re
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Put a placeholder in the place of each tutorial and how-to page that is not written yet."""
    for name in _pages(config.nav):
        if name.startswith(("tutorials/", "how_to/")) and files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, content="# This page is being written\n"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Drop the second word of a code block's language: `sh no-run` is a language for the tests."""
    return re.sub(r"^(\s*```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(each)
