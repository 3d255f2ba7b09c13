"""Phrases that Paceline's texts do not use, and the texts of a file that users or contributors read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.syntax_trees import nodes

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


OPENINGS = {"What", "Whether", "How", "That", "Those", "Of", "Which", "Where", "When", "Why"}
"""Words that no docstring begins with: it begins with a verb or a noun."""
_PHRASES = [(re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), better) for pattern, better in BANNED.items()]
_STRING_OR_COMMENT = re.compile(
    r"""\"{3}.*?(?<!\\)\"{3}|'{3}.*?(?<!\\)'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)
"""Ten times as fast as `tokenize`."""


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
        for pattern, better in _PHRASES
        for match in pattern.finditer(text)
    ]
    return sorted(set(found))


def openings(file: Path) -> list[Finding]:
    """Return the docstrings of a module, and of its classes, functions and fields, that do not begin as they should."""
    texts = [
        (each.value.lineno, each.value.value)
        for node in nodes(file.read_text(), ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for each in node.body
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    ]
    return [Finding(line, word, "a verb or a noun") for line, text in texts if (word := text.split()[0]) in OPENINGS]


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Return the docstrings, comments and other strings of a module, with their lines."""
    for node in nodes(source, ast.JoinedStr):
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    for each in nodes(source, ast.Constant):
        if isinstance(each.value, str):
            yield each.lineno, each.value
    yield from _comments(source)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Return the comments of a module; lines that follow each other are one."""
    lines: list[str] = []
    first = 0
    for match in _STRING_OR_COMMENT.finditer(source):
        if (comment := match["comment"]) is None:
            continue
        line = source.count("\n", 0, match.start()) + 1
        if lines and line != first + len(lines):
            yield first, "\n".join(lines)
            lines = []
        first = first if lines else line
        lines.append(comment.lstrip("# "))
    if lines:
        yield first, "\n".join(lines)


def _without_code(markdown: str) -> str:
    """Return a page with its code blanked, line by line."""
    code = r"^( *)```.*?^\1```$|`[^`\n]*`"
    return re.sub(code, lambda match: "\n" * match[0].count("\n"), markdown, flags=re.DOTALL | re.MULTILINE)
