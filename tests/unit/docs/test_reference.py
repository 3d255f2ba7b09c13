"""The generated pages of the reference are those that the code gives."""

import runpy

import pytest

from paceline.cli import COMMANDS
from paceline.config.experiment_schema import ExperimentSchema
from paceline.tracking import metrics
from support.doc_pages import DOCS

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(DOCS))
    PAGES = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (DOCS / "reference" / name).read_text() == PAGES[name](), "run: uv run python docs/generate.py"


def test_every_page_of_the_reference_is_generated() -> None:
    assert {file.name for file in (DOCS / "reference").iterdir()} == set(PAGES)


def test_every_command_and_section_has_a_heading() -> None:
    commands, config = PAGES["cli.md"](), PAGES["config.md"]()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in commands] == []
    sections = set(ExperimentSchema.model_fields) - {"name", "seed"}
    assert [name for name in sections if f"\n## {name}\n" not in config] == []


def test_no_section_of_the_config_says_the_same_twice() -> None:
    for section in str(PAGES["config.md"]()).split("\n## ")[1:]:
        first, *others = (each.removesuffix(".").lower() for each in section.split("\n\n")[1:3])
        assert not any(first in each for each in others), section[:200]


def test_every_metric_has_its_unit() -> None:
    page = str(PAGES["metrics.md"]())
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1:] for row in page.splitlines() if "`" in row}
    keys = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert {f"`{key}`" for key in keys - {metrics.SYSTEM}} <= rows.keys()
    for key in (*metrics.FOUND_SIZES, *map(metrics.cost_metric, metrics.COSTS), "system/gpu_N_power_usage_watts"):
        assert any(f"`{key}`" in row for row in rows)
    units = {metrics.PEAK_MEMORY_BYTES: "bytes", metrics.VAL_ACCURACY: "0 to 1", metrics.ENERGY_JOULES: "J"}
    assert {key: rows[f"`{key}`"][0] for key in units} == units
    assert len(rows[f"`{metrics.HOST}`"]) == 1  # a tag: no unit
