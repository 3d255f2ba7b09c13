"""Golden texts: the wording of everything Paceline says, one file per room, reviewed in the diff.

A test asserts codes, fields and numbers itself and hands the text over: `golden(str(error))`. The text is compared with
its copy in `tests/golden/<room>.txt`, where `<room>` is the folder of the test below `unit` or `system`. After a
rewording, `uv run pytest -n 0 --update-golden` writes the files again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LAYERS = ("", "unit", "system", "system/in_process")
"""Folders of which each folder holds the tests of a room."""
FOLDER = TESTS / "golden"
HEADER = "=== "
"""Starts the line that names an entry; the text of the entry follows."""


@dataclass
class GoldenFile:
    """The texts of one room, by test and name."""

    path: Path
    texts: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Entries that this session has compared."""

    @classmethod
    def read(cls, path: Path) -> "GoldenFile":
        """Read a file; one that does not exist yet is empty."""
        return cls(path, parse(path.read_text(encoding="utf-8")) if path.exists() else {})

    def orphans(self) -> set[str]:
        """The entries whose test is no longer in the room."""
        code: dict[str, str] = {}
        for file in TESTS.rglob("test_*.py"):
            if room_of(file) == self.path.stem:
                code[file.name] = code.get(file.name, "") + file.read_text(encoding="utf-8")
        found = set()
        for key in self.texts:
            file, _, test = key.partition("::")
            if f"def {test.partition('[')[0].partition(' | ')[0]}(" not in code.get(file, ""):
                found.add(key)
        return found

    def write(self, ended: Iterable[str]) -> None:
        """Write the texts, without those of `ended` tests that did not ask for them, and without orphans."""
        ended, orphans = set(ended), self.orphans()
        kept = {
            key: text
            for key, text in sorted(self.texts.items())
            if key in self.seen or (key not in orphans and key.partition(" | ")[0] not in ended)
        }
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text("".join(f"{HEADER}{key}\n{text}\n" for key, text in kept.items()), encoding="utf-8")


def parse(text: str) -> dict[str, str]:
    """Split the text of a golden file into its entries."""
    entries: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(HEADER):
            lines = entries.setdefault(line.removeprefix(HEADER), [])
        else:
            lines.append(line)
    return {key: "\n".join(lines) for key, lines in entries.items()}


@dataclass
class Golden:
    """Compares texts of one test with their golden copies."""

    file: GoldenFile
    test: str
    replaced: dict[str, str]
    update: bool

    def __call__(self, text: str, name: str = "") -> None:
        """Compare a text; `name` tells several texts of one test apart."""
        key = f"{self.test} | {name}" if name else self.test
        assert key not in self.file.seen, f"two golden texts are called {key!r}: give each a name"
        self.file.seen.add(key)
        for found, placeholder in self.replaced.items():
            text = text.replace(found, placeholder)
        text = "\n".join(_printable(line.rstrip()) for line in text.splitlines())
        if self.update:
            self.file.texts[key] = text
            return
        assert key in self.file.texts, f"no golden text for {key!r} in {self.file.path.name}: {HINT}"
        assert text == self.file.texts[key], HINT


def _printable(line: str) -> str:
    """A line with its control characters escaped, so that the file stays text."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


HINT = "after a rewording, run: uv run pytest -n 0 --update-golden"


class GoldenPlugin:
    """Provides the fixture `golden` and the option `--update-golden`."""

    def __init__(self, config: pytest.Config) -> None:
        self.update = bool(config.getoption("--update-golden"))
        self.files: dict[str, GoldenFile] = {}
        self.passed: set[str] = set()

    def file(self, room: str) -> GoldenFile:
        """The golden file of a room, read once."""
        if room not in self.files:
            self.files[room] = GoldenFile.read(FOLDER / f"{room}.txt")
        return self.files[room]

    @pytest.fixture
    def golden(self, request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
        """Compare texts with `tests/golden/<room>.txt`; the test's own folder reads `<tmp>` there."""
        file = self.file(room_of(request.node.path))
        replaced = {str(tmp_path): "<tmp>", str(TESTS.parent): "<repo>", str(Path.home()): "<home>"}
        return Golden(file, key_of(request.node.nodeid), replaced, self.update)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(key_of(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        if self.update:
            for file in self.files.values():
                file.write(self.passed)


def room_of(path: Path) -> str:
    """The room of a test file: the folder below the one of `LAYERS`; `tests` for a file beside the rooms."""
    layer = max((each for each in LAYERS if path.is_relative_to(TESTS / each)), key=len)
    parts = path.relative_to(TESTS / layer).parts
    return parts[0] if len(parts) > 1 else "tests"


def key_of(nodeid: str) -> str:
    """The name of a test's golden text: its file and name, with its parameters."""
    file, _, name = nodeid.partition("::")
    return f"{file.rpartition('/')[2]}::{name}"
