"""The pages that users read, and their code blocks."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in DOCS.rglob("*.md") if "records" not in page.parts),
    ]
)
FENCE = re.compile(r"^( *)```(\w*)( no-run)?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILE_NAME = r"[\w./-]+\.(?:py|yaml|toml)"
NO_RUN = "no-run"


class Block(NamedTuple):
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    is_run: bool
    """False for blocks such as `sh no-run`."""
    text: str
    file: str
    """Name of the file that the block is; empty for one that is no file."""

    @property
    def place(self) -> str:
        """Such as `README.md:12`."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    source = page.read_text()
    found = []
    for match in FENCE.finditer(source):
        indent, language, no_run, text = match.groups()
        line = source[: match.start()].count("\n") + 1
        text = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        found.append(Block(page, line, language, not no_run, text, _file_of(source[: match.start()], language, text)))
    return found


def _file_of(before: str, language: str, text: str) -> str:
    """Return the name in the block's first line, else that of a paragraph that ends with a colon above the block."""
    if named := re.match(rf"# ({FILE_NAME})\n", text):
        return named[1]
    paragraph = before.rstrip().rpartition("\n\n")[2]
    names = re.findall(rf"`({FILE_NAME})`", paragraph) if paragraph.endswith(":") else []
    endings = {"python": ".py", "yaml": ".yaml", "toml": ".toml"}
    fitting = [name for name in names if name.endswith(endings.get(language, "/"))]
    return fitting[0] if fitting else ""


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def commands_in(text: str) -> Iterator[list[str]]:
    """Return the arguments of each `paceline` command of a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;|\|", line.removeprefix("$ ")):
            words = shlex.split(part, comments=True)
            while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("uv", "run")):
                words.pop(0)
            if words[:1] == ["paceline"]:
                yield words[1:]


def nav_pages() -> list[str]:
    """Return the pages of the site's navigation."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return list(_pages(settings["nav"]))


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(each)
