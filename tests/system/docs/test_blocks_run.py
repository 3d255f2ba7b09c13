"""The code blocks of each page run, in order, in one scratch folder. `sh no-run` and the like are left out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.command import INHERITED
from support.doc_pages import BLOCKS, ROOT, Block, blocks_of

REPRESENTATIVE = ROOT / "README.md"
"""The page whose blocks every run of the tests runs."""
RUN = ("python", "sh")
SHIMS = {
    "paceline": '{python} -m paceline "$@"',
    "python": '{python} "$@"',
    "pip": "true",
    "uv": 'if [ "$1" != run ]; then exit 0; fi; shift; while [ "${{1#--}}" != "$1" ]; do shift 2; done; "$@"',
}
"""Programs that a block may call: this Python, and no installer."""
PAGES = sorted({block.page for block in BLOCKS if block.is_run and block.language in RUN and not block.file})


@pytest.fixture
def scratch(tmp_path: Path, prepared_database: Path) -> Path:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(prepared_database, tmp_path / "mlflow.db")  # as the first command would make it, for seconds
    (tmp_path / ".bin").mkdir()
    for name, line in SHIMS.items():
        program = tmp_path / ".bin" / name
        program.write_text(f"#!/bin/sh\n{line.format(python=sys.executable)}\n")
        program.chmod(0o755)
    return tmp_path


def run(block: Block, folder: Path) -> None:
    """Run one block, or write it to the file that it is."""
    if block.file:
        (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
        (folder / block.file).write_text(block.text)
    elif block.is_run and block.language in RUN:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
        environment |= {"PATH": f"{folder / '.bin'}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
        file = folder / ".block"
        file.write_text(block.text)
        program = [sys.executable] if block.language == "python" else ["bash", "-euo", "pipefail"]
        if block.language == "python":
            environment["PYTHONPATH"] = f"{folder}:{environment.get('PYTHONPATH', '')}".rstrip(":")
        done = subprocess.run(
            [*program, str(file)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block.place}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page == REPRESENTATIVE else pytest.mark.slow, id=str(page.relative_to(ROOT)))
        for page in PAGES
    ],
)
def test_the_blocks_of_a_page_run(page: Path, scratch: Path) -> None:
    for block in blocks_of(page):
        run(block, scratch)
