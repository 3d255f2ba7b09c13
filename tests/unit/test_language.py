"""The texts that people read use the field's own words: no banned phrase in docs, docstrings, comments and messages."""

import ast
import re
from pathlib import Path

import pytest

from support.doc_pages import PAGES, ROOT
from support.language import Finding, findings, openings
from support.syntax_trees import nodes

PACKAGE = ROOT / "platform" / "paceline"
FILES = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.py")), *sorted(PACKAGE.rglob("*.py"))]


def test_no_file_has_a_banned_phrase() -> None:
    found = {str(file.relative_to(ROOT)): findings(file) for file in FILES}
    assert {file: each for file, each in found.items() if each} == {}


def test_docstrings_begin_with_a_verb_or_a_noun(tmp_path: Path) -> None:
    found = {str(file.relative_to(ROOT)): openings(file) for file in PACKAGE.rglob("*.py")}
    assert {file: each for file, each in found.items() if each} == {}
    planted = tmp_path / "module.py"
    planted.write_text('class Run:\n    """A run."""\n\n    steps: int\n    """How many there were."""\n')
    assert openings(planted) == [Finding(5, "How", "a verb or a noun")]


SHOWN_CLASSES = {"TaskOutput", "LightningTask"}
"""Classes that users write themselves, and that messages name."""


def sentences(source: str) -> list[str]:
    """Strings of more than two words, without docstrings and types."""
    aside = {id(each.value) for each in nodes(source, ast.Expr)}
    texts = [
        each.value for each in nodes(source, ast.Constant) if isinstance(each.value, str) and id(each) not in aside
    ]
    return [text for text in texts if len(text.split()) > 2 and " | None" not in text]


def test_messages_name_no_class_of_the_code() -> None:
    """A class that is renamed by a tool takes words of sentences with it: "MetricPoint at a line"."""
    sources = {str(file.relative_to(ROOT)): file.read_text() for file in PACKAGE.rglob("*.py")}
    classes = {each.name for source in sources.values() for each in nodes(source, ast.ClassDef)}
    composed = {name for name in classes if re.match("[A-Z][a-z]+[A-Z]", name)} - SHOWN_CLASSES
    words = {
        place: {word for text in sentences(each) for word in re.findall(r"\w+", text)}
        for place, each in sources.items()
    }
    assert {place: each & composed for place, each in words.items() if each & composed} == {}
    assert sentences('"""A MetricPoint in a docstring."""\nx = "MetricPoint at a line"') == ["MetricPoint at a line"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""It goes\n    on."""', 1),
        ("x = 1  # so that it is\n# no list", 1),
        ('x = f"the cure of {1} is no list"', 2),
        ('"""There is no list, and it is no longer told apart."""', 0),
    ],
)
def test_phrases_are_found_in_strings_and_comments(text: str, count: int, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(f"{text}\n")
    assert len(findings(file)) == count


def test_code_in_a_page_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("`harm` is a verdict.\n\n```text\ncure: none\n```\n\nIt is\nno list.\n")
    assert [(each.line, each.phrase) for each in findings(file)] == [(7, "is no")]
