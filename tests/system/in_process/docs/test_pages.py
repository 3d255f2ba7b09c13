"""The pages that users read: their links, their code blocks, and the length of the README."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.cli import COMMANDS, parse
from paceline.config import load_config
from paceline.config.experiment import validate
from support.doc_pages import BLOCKS, DOCS, PAGES, ROOT, Block, blocks_of, commands_in, nav_pages

README_LINES = 150
REQUIRED = {"name", "model", "data"}
LIBRARIES = ("timm", "torchmetrics")
"""Libraries that configs name, and that are not installed with the lowest versions."""
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")


def of_language(language: str) -> Any:
    """The blocks of a language, as a parameter of a test."""
    found = [block for block in BLOCKS if block.language == language]
    assert found
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_the_readme_has_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"| `paceline {name}" not in text] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    links = [link for link, _ in LINK.findall(text) if link and "://" not in link and not link.startswith("mailto:")]
    targets = [(page.parent / link).resolve() for link in links]
    assert [str(target) for target in targets if not target.exists()] == []


def test_the_navigation_has_every_page_once() -> None:
    named = [DOCS / name for name in nav_pages()]
    assert len(set(named)) == len(named)
    assert [page for page in named if not page.is_file()] == []


@of_language("yaml")
def test_a_yaml_block_is_a_config(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = yaml.safe_load(block.text)
    if not block.is_run:
        return
    for library in LIBRARIES:
        if f'"{library}.' in block.text:
            pytest.importorskip(library)
    for other in blocks_of(block.page):
        if other.file and other.language in ("python", "yaml"):
            (tmp_path / other.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / other.file).write_text(other.text)
    if tree.keys() >= REQUIRED or "extends" in tree:
        monkeypatch.chdir(tmp_path)
        file = tmp_path / (block.file or "config.yaml")
        file.write_text(block.text)
        load_config(file)
    else:
        validate({"name": "fragment", "model": {"name": "cnn"}, "data": {"name": "mnist5k"}, **tree})


@of_language("python")
def test_a_python_block_is_valid(block: Block) -> None:
    ast.parse(block.text)


@of_language("sh")
def test_the_commands_of_a_shell_block_parse(block: Block) -> None:
    for arguments in commands_in(block.text):
        if not {"--help", "--version"} & set(arguments):
            parse(arguments)


def test_commands_are_found() -> None:
    text = "export A=1\nuv run paceline train a.yaml \\\n    x=1 && B=2 paceline ui  # serves\nray up"
    assert list(commands_in(text)) == [["train", "a.yaml", "x=1"], ["ui"]]
    assert sum(len(list(commands_in(block.text))) for block in BLOCKS if block.language == "sh") >= 10


SHOWN = {
    ("timm.md", "mine.py"): "timm_backbone/mine.py",
    ("timm.md", "experiment.yaml"): "timm_backbone/experiment.yaml",
    ("hugging_face.md", "mine.py"): "bert_f1/mine.py",
    ("hugging_face.md", "experiment.yaml"): "bert_f1/experiment.yaml",
    ("hugging_face.md", "mine_gpt2.py"): "gpt2_text/mine.py",
    ("lightning.md", "mine.py"): "lightning_module/mine.py",
    ("lightning.md", "experiment.yaml"): "lightning_module/experiment.yaml",
}
"""File of an example for each block of a page."""


@pytest.mark.parametrize(("page", "file"), SHOWN)
def test_a_page_shows_the_files_of_its_example(page: str, file: str) -> None:
    block = next(block for block in blocks_of(DOCS / "how_to" / page) if block.file == file)
    assert block.text == (DOCS / "examples" / SHOWN[page, file]).read_text()


def test_each_example_is_listed() -> None:
    page = (DOCS / "how_to" / "examples.md").read_text()
    assert all(f"../examples/{folder.name}/mine.py" in page for folder in (DOCS / "examples").iterdir())
