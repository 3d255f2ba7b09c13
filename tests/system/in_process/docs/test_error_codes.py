"""Every code of a message has a section, every section has a code, and `paceline explain` prints them."""

from pathlib import Path

import pytest

import paceline
from paceline.cli import run
from paceline.explanations import PARTS, explanations, groups
from support.doc_pages import DOCS
from support.error_codes import Places, codes_in, warnings_without_code

PACKAGE = Path(paceline.__file__).parent


@pytest.fixture(scope="module")
def codes() -> Places:
    """Those of the package. It takes seconds to look for them."""
    return codes_in(PACKAGE)


def test_every_code_has_a_section(codes: Places) -> None:
    assert {code: places for code, places in codes.items() if code not in explanations()} == {}


def test_every_section_has_a_code_in_the_source(codes: Places) -> None:
    assert explanations().keys() - codes.keys() == set()
    sections = [each.code for group in groups() for each in group.explanations]
    assert len(sections) == len(set(sections))


def test_every_warning_has_a_code() -> None:
    assert warnings_without_code(PACKAGE) == []


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        (
            'class Fault(PacelineError): ...\nclass Own(Fault): ...\nraise Own("text", "of-a-subclass")',
            {"of-a-subclass"},
        ),
        (
            'class Late(PacelineError):\n    def __init__(self):\n        super().__init__("text", "of-super")',
            {"of-super"},
        ),
        ('code = "one" if x else "two"\nwarn("text", code=code)', {"one", "two"}),
        ('listener.event("warning", {"code": "of-an-event", "message": "text"})', {"of-an-event"}),
        ('raise Problem(failure.get("code") or "or-this", "reason")', {"or-this"}),
        ('def notices(self):\n    yield "of-a-task", "text"', {"of-a-task"}),
        ('Note("text", "a-note")', set()),
    ],
)
def test_codes_are_found(source: str, codes: set[str], tmp_path: Path) -> None:
    declared = "class PacelineError:\n    def __init__(self, message, code): ...\nclass Problem:\n    code: str\n"
    (tmp_path / "module.py").write_text(f"{declared}{source}\n")
    assert codes_in(tmp_path).keys() == codes


def test_a_warning_without_a_code_is_found(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('listener.event("warning", {"message": "text"})\n')
    assert warnings_without_code(tmp_path) == ["module.py:1"]


def test_every_text_has_some_words() -> None:
    short = {
        (each.code, part)
        for each in explanations().values()
        for part in PARTS
        if len(str(getattr(each, part.lower())).split()) < 2
    }
    assert short == set()


@pytest.mark.parametrize("code", ["unknown-key", "[unknown-key]"])
def test_explain_prints_the_section(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", code]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    each = explanations()["unknown-key"]
    assert printed == f"unknown-key Cause: {each.cause} Fix: {each.fix} Example: {each.example}"


def test_explain_lists_all_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    printed = capsys.readouterr().out
    assert explanations().keys() <= {word.rstrip(",") for word in printed.split()}
    assert [group.title for group in groups() if group.title not in printed] == []


def test_explain_names_the_nearest_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["explain", "unknwon-key"])
    assert caught.value.code == 2
    assert "did you mean unknown-key" in capsys.readouterr().err


def test_every_code_of_the_how_to_pages_exists() -> None:
    page = (DOCS / "how_to" / "troubleshooting.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    codes = {word for row in rows for word in row.replace("`", "").replace(",", " ").split()}
    assert codes - explanations().keys() == set()
