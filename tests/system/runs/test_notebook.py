"""`jobs/own_model.ipynb`: its cells run as they are, in this process. All notebooks are shipped with small outputs."""

import ast
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[3] / "jobs" / "own_model.ipynb"


def code_cells(notebook: Path = NOTEBOOK) -> list[Any]:
    cells = nbformat.read(notebook, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def test_its_cells_train_a_custom_model(
    prepared_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    for cell in code_cells():
        *body, last = ast.parse(cell.source).body
        is_value = isinstance(last, ast.Expr)
        exec(compile(ast.Module(body if is_value else [*body, last], []), "cell", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names) if is_value else None)  # type: ignore[attr-defined]
    _, result, history, classes = shown
    assert result.metrics["val/accuracy"] > 0.9
    assert "<table" in result._repr_html_()
    assert "val/loss" in history
    assert classes == [0, 1]


@pytest.mark.parametrize("notebook", sorted(NOTEBOOK.parent.glob("*.ipynb")), ids=lambda notebook: notebook.name)
def test_a_notebook_is_shipped_with_small_outputs_and_no_paths_of_a_machine(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert all(cell.outputs for cell in cells[1:])
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.stat().st_size < 60_000
    assert not re.search(r"/(?:tmp|root|home/(?!you/))", notebook.read_text())
