"""A memory plan as tables: on a terminal, in Python and in a notebook."""

from paceline.config.derived import derive
from paceline.config.loading import load_config
from paceline.memory.plan import GridPoint, MemoryPlan

CONFIG = load_config(
    {
        "name": "x",
        "model": {"name": "cnn"},
        "data": {"name": "mnist5k", "global_batch_size": 8},
        "scaling": {"num_workers": 0},
    }
)


def point(size: int, peak: int, fits: bool | None, is_tight: bool = False) -> GridPoint:
    settings = {
        "data.micro_batch_size": size,
        "trainer.precision": "32-true",
        "trainer.activation_checkpointing": "none",
    }
    return GridPoint(settings, peak, fits, is_tight)


def plan(*grid: GridPoint, **changes: object) -> MemoryPlan:
    values: dict[str, object] = {
        "parameters": 1000,
        "trainable_parameters": 1000,
        "flops_per_sample": 300,
        "forward_flops_per_sample": 100,
        "peak_memory_bytes": 3 << 20,
        "memory": {"weights": 1 << 20, "activations": 2 << 20},
        "micro_batch_size": 8,
        "device": "cpu",
        "device_memory_bytes": 2 << 30,
        "fits": True,
        "grid": grid,
        "cheapest": grid[0].overrides if grid else None,
        "derived": derive(CONFIG, None),
        "notes": ("estimated & <rough>",),
    }
    return MemoryPlan(**{**values, **changes})  # type: ignore[arg-type]


def test_rows_tell_the_sizes() -> None:
    rows = dict(plan(point(8, 3 << 20, True)).rows())
    assert rows["peak memory"].startswith("3.0 MiB on cpu")
    assert (rows["  weights"], rows["device memory"]) == ("1.0 MiB", "2.00 GiB")
    assert "data.micro_batch_size=8" in rows["cheapest that fits"]
    assert dict(plan(device_memory_bytes=None, cheapest=None).rows())["cheapest that fits"] == "none"


def test_the_table_tells_what_fits() -> None:
    shown = plan(point(8, 1, True), point(4, 1, True, True), point(2, 1, False, True), point(1, 1, None))
    heading, rows = shown.table()
    assert len(heading) == len(rows[0])
    assert [row[0] for row in rows] == ["8", "4", "2", "1"]
    assert [row[-1] for row in rows] == ["yes", "yes, barely", "no", "?"]


def test_a_notebook_shows_text_as_text() -> None:
    html = plan(point(8, 1, True))._repr_html_()
    assert "estimated &amp; &lt;rough&gt;" in html
    assert html.count("<table>") == html.count("</table>") == 2
    assert "peak memory" in repr(plan())
