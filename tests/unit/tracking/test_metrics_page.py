"""`docs/metrics.md` says what each metric and tag means, just as `paceline.tracking.metrics` does."""

import runpy
from pathlib import Path

from paceline.tracking import metrics

DOCS = Path(__file__).parents[3] / "docs"
PAGE = str(runpy.run_path(str(DOCS / "metrics_page.py"))["page"]())


def test_the_page_is_what_the_module_says() -> None:
    assert (DOCS / "metrics.md").read_text() == PAGE, "run: uv run python docs/metrics_page.py"


def test_every_key_is_there_with_its_unit() -> None:
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1:] for row in PAGE.splitlines() if "`" in row}
    keys = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert {f"`{key}`" for key in keys - {metrics.SYSTEM}} <= rows.keys()
    for key in (*metrics.FOUND_SIZES, *map(metrics.cost_metric, metrics.COSTS), "system/gpu_N_power_usage_watts"):
        assert any(f"`{key}`" in row for row in rows)
    units = {metrics.PEAK_MEMORY_BYTES: "bytes", metrics.VAL_ACCURACY: "0 to 1", metrics.ENERGY_JOULES: "J"}
    assert {key: rows[f"`{key}`"][0] for key in units} == units
    assert len(rows[f"`{metrics.HOST}`"]) == 1  # a tag: no unit
