"""The notebook runs as it is, in a kernel of its own, and can be interrupted."""

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "jobs" / "sweep.ipynb"
MOST_LINES = 8

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def notebook() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture
def folder(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the notebook lies, with the configs beside it, and a database that need not be made first."""
    (tmp_path / "jobs").mkdir()
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(prepared_database, tmp_path / "jobs" / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "jobs"


@pytest.fixture
def client(folder: Path) -> Iterator[Any]:
    from nbclient import NotebookClient

    client = NotebookClient(notebook(), timeout=500, resources={"metadata": {"path": str(folder)}})
    with client.setup_kernel():
        yield client


def outputs(cell: Any, kind: str) -> list[Any]:
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


def test_the_notebook_goes_from_config_to_pictures_in_a_few_lines(client: Any) -> None:
    cells = [cell for cell in client.nb.cells if cell.cell_type == "code"]
    lines = [line for cell in cells for line in cell.source.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    sweeping, heatmap, pareto = cells
    sweeping.source = sweeping.source.replace('"trainer.epochs": 3', '"trainer.epochs": 1').replace(
        "[64, 256, 1024]", "[256]"
    )
    for number, cell in enumerate(client.nb.cells):
        if cell.cell_type == "code":
            client.execute_cell(cell, number)
    *_, table = outputs(sweeping, "text/html")
    assert "3 trials: 3 finished" in table
    for cell in (heatmap, pareto):
        (picture,) = outputs(cell, "image/png")
        assert len(picture) > 5_000
    told = "".join(output.get("text", "") for output in sweeping.outputs)
    assert "3/3 trials" in told


def test_the_shipped_notebook_shows_its_outputs() -> None:
    sweeping, heatmap, pareto = [cell for cell in notebook().cells if cell.cell_type == "code"]
    assert outputs(sweeping, "text/html")
    assert outputs(heatmap, "image/png")
    assert outputs(pareto, "image/png")


@pytest.mark.slow
def test_an_interrupted_kernel_stops_the_sweep_and_lives_on(client: Any, folder: Path) -> None:
    (sweeping, *_) = [cell for cell in client.nb.cells if cell.cell_type == "code"]
    place = client.nb.cells.index(sweeping)

    def interrupt() -> None:
        while not list(folder.glob("runs/*/*/trials/*/checkpoints/step-*")):
            time.sleep(0.2)
        asyncio.run(client.km.interrupt_kernel())

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    client.execute_cell(sweeping, place)
    thread.join(10)
    *_, table = outputs(sweeping, "text/html")
    assert "interrupted; the same command" in table
    client.execute_cell(sweeping, place)
    *_, table = outputs(sweeping, "text/html")
    assert "9 trials: 9 finished" in table
    assert len(list(folder.glob("runs/*/*/sweep.json"))) == 1
