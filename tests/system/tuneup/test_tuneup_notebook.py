"""`jobs/tuneup.ipynb`: its cells compile, its config can be tuned, and with time its cells run as they are."""

import ast
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from paceline.tuneups.preview import preview

NOTEBOOK = Path(__file__).parents[3] / "jobs" / "tuneup.ipynb"


def code_cells() -> list[Any]:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def displayed(cell: Any, names: dict[str, Any]) -> Any:
    """Run a cell in this process; the value of its last line."""
    *body, last = ast.parse(cell.source).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_its_cells_compile_and_a_dry_run_finds_techniques() -> None:
    cells = code_cells()
    assert all(compile(cell.source, "cell", "exec") for cell in cells)
    config = displayed(cells[0], {})
    assert "data.global_batch_size" in config._repr_html_()
    assert config.tuneup.budget_seconds <= 120
    tried = [technique for technique in preview(config) if not technique.why_not]
    assert len(tried) >= 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_cells_tune_and_train_the_recommended_config(
    prepared_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    _, result, recommended, trained = (displayed(cell, names) for cell in code_cells())
    assert "<table" in result._repr_html_()
    assert trained.status == "finished"
    assert trained.config.name == "digits-fast"
    assert all(str(value) in repr(trained.config) for value in recommended.values())
