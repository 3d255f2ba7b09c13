"""Phrases that Paceline's texts do not use, and the texts of a file that users or contributors read."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.syntax_trees import parsed

BANNED = {
    r"\b(?:go|goes|going|went|gone) on\b": "continue, resume",
    r"\banew\b|\bonce more\b": "again",
    r"\btold\b(?! apart)|\btells? of\b": "is reported, reports, logs",
    r"\blet go\b": "dropped, released",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bcures?\b": "hint, fix",
    r"\bc(?:ame|omes?) of (?:it|them|this|those|each|all)\b": "result",
    r"\bnothing is gained\b": "no gain",
    r"(?<!there\s)\b(?:is|are|was|were) no (?!longer\b|more than\b|less than\b)": "no gain; is not",
    r"\b(?:comes?|came) to\b(?! (?:an|its|their) ends?\b)": "is 5.65x",
    r"\bheld against\b": "is compared with",
    r"\bthere to see\b": "contents",
    r"\bharm(?:s|ed|ful)?\b": "regression",
    r"\bduels?\b": "paired benchmark",
    r"\bstand-?ins?\b": "fake tensor, placeholder, padding",
    r"\bwhat is computed\b": "the numerics",
    r"\b(?:your|user's|users') own (?:model|code)s?\b": "custom model, user code",
    r"\bwhereabouts\b": "device tracking",
    r"\berrands?\b": "subprocess task",
    r"\blast words\b|\bremarks?\b": "report, final report, tags",
}
"""Pattern of each phrase, and what to write."""


class Finding(NamedTuple):
    """A banned phrase in a file."""

    line: int
    phrase: str
    better: str


def findings(file: Path) -> list[Finding]:
    """Return the banned phrases of a file, in order."""
    texts = _python_texts(file.read_text()) if file.suffix == ".py" else [(1, _without_code(file.read_text()))]
    found = [
        Finding(line + text[: match.start()].count("\n"), " ".join(match[0].split()), better)
        for line, text in texts
        for pattern, better in BANNED.items()
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE)
    ]
    return sorted(set(found))


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Return the docstrings, comments and other strings of a module, with their lines."""
    tree = parsed(source)
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts)
            case ast.Constant(value=str(text)):
                yield node.lineno, text
    yield from _comments(source)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Return the comments of a module; lines that follow each other are one."""
    lines: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != first + len(lines):
                yield first, "\n".join(lines)
                lines = []
            first = first if lines else token.start[0]
            lines.append(token.string.lstrip("# "))
    if lines:
        yield first, "\n".join(lines)


def _without_code(markdown: str) -> str:
    """Return a page with its code blanked, line by line."""
    code = r"^( *)```.*?^\1```$|`[^`\n]*`"
    return re.sub(code, lambda match: "\n" * match[0].count("\n"), markdown, flags=re.DOTALL | re.MULTILINE)
