"""The notebook: its cells on the Ray of this process, and in a kernel of their own that is interrupted."""

import ast
import asyncio
import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.sweeps.sweep_log import read_log

ROOT = Path(__file__).parents[3]
MOST_LINES = 4
"""Of code beside the config."""
MOST_BYTES = 60_000

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def notebook() -> Any:
    import nbformat

    return nbformat.read(ROOT / "jobs" / "sweep.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(cell: Any, kind: str) -> list[Any]:
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.fixture
def folder(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the notebook lies, with no other file of the repository."""
    (tmp_path / "jobs").mkdir()
    shutil.copy(prepared_database, tmp_path / "jobs" / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path / "jobs")
    return tmp_path / "jobs"


def states(folder: Path) -> Counter[str]:
    """How many trials of the only sweep have come to which state."""
    (sweep,) = folder.glob("runs/*/*/sweep.json")
    return Counter(trial.state for trial in read_log(sweep.parent).trials.values())


def displayed(cell: Any, names: dict[str, Any]) -> Any:
    """Run a cell in this process; the value of its last line."""
    *body, last = ast.parse(cell.source).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_the_cells_go_from_config_to_pictures_in_a_few_lines(folder: Path) -> None:
    cells = code_cells(notebook())
    assert sum(bool(line.strip()) for cell in cells[1:] for line in cell.source.splitlines()) <= MOST_LINES
    changes = {'"metric":': '"slots": 1, "metric":', '{"epochs": 3}': '{"max_steps": 3}', "[64, 256, 1024]": "[256]"}
    for old, new in changes.items():
        assert old in cells[0].source
        cells[0].source = cells[0].source.replace(old, new)
    names: dict[str, Any] = {}
    exec(cells[0].source, names)
    result, heatmap, pareto = (displayed(cell, names) for cell in cells[1:])
    assert states(folder) == {"finished": 3}
    assert "<table" in result._repr_html_()
    for picture in (heatmap, pareto):
        picture.savefig(folder / "picture.png")
        assert (folder / "picture.png").stat().st_size > 5_000


def test_the_shipped_notebook_shows_its_outputs() -> None:
    _, sweeping, heatmap, pareto = code_cells(notebook())
    assert (ROOT / "jobs" / "sweep.ipynb").stat().st_size < MOST_BYTES
    assert all([outputs(sweeping, "text/html"), outputs(heatmap, "image/png"), outputs(pareto, "image/png")])


@pytest.mark.slow
def test_an_interrupted_kernel_stops_the_sweep_and_lives_on(folder: Path) -> None:
    from nbclient import NotebookClient

    client = NotebookClient(notebook(), timeout=500, resources={"metadata": {"path": str(folder)}})
    cells = code_cells(client.nb)
    ended = threading.Event()

    def execute(cell: Any) -> None:
        client.execute_cell(cell, client.nb.cells.index(cell))

    def interrupt() -> None:
        while not list(folder.glob("runs/*/*/trials/*/checkpoints/step-*")):
            if ended.wait(0.2):
                return
        asyncio.run(client.km.interrupt_kernel())

    with client.setup_kernel():
        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        execute(cells[0])
        execute(cells[1])
        ended.set()
        thread.join(60)
        (sweep,) = folder.glob("runs/*/*/sweep.json")
        assert json.loads(sweep.read_text())["status"] == "interrupted"
        for cell in cells:
            execute(cell)
    assert states(folder) == {"finished": 9}
    assert outputs(cells[1], "text/html")
    for cell in cells[2:]:
        assert outputs(cell, "image/png")
