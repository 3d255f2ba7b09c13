"""The note of a sweep's own run: ranked settings, what the best one changes, costs, and text of users as text."""

import csv
import io
import re
from typing import Any

import pytest

from paceline.tracking import metrics
from paceline.tracking.markdown import LONGEST_VALUE, MOST_CHANGES, changes_part, pictures_part
from paceline.tracking.run_record import TAG_LENGTH
from paceline.tracking.sweep_note import Objective, sweep_note, sweep_points
from paceline.tracking.trials_table import TrialRow, trials_csv
from support.golden import Golden
from support.tracking.markdown import best_of, blocks_of, outside_blocks, table_of

ACCURACY = [Objective("val/accuracy", "max")]
LINKS = "[x](javascript:1)`![y](http://a.b/c.png) www.evil.example me@evil.example"
SCRIPT = f"a|b\n| 9 | <script>alert(1)</script>{LINKS} **d**"


def row(number: int, accuracy: float | None = None, lr: float | None = None, **changes: Any) -> TrialRow:
    values = {} if accuracy is None else {"val/accuracy": accuracy}
    setting = {"lr": number if lr is None else lr}
    given = {"id": f"{number:04}", "setting": setting, "state": "finished", "metrics": values}
    return TrialRow(**{**given, **changes})


def seeded(lr: float, *accuracies: float) -> list[TrialRow]:
    more = {"setting": {"optimizer.lr": lr}, "samples": 1000, "samples_per_second": 500.0, "seconds": 2.0, "workers": 2}
    return [row(int(lr * 1000) + seed, value, **more) for seed, value in enumerate(accuracies)]


def note_of(rows: list[TrialRow], objectives: list[Objective] = ACCURACY, **more: Any) -> str:
    return sweep_note("mnist", "finished", None, objectives, rows, **more)


def ranking(rows: list[TrialRow], objectives: list[Objective] = ACCURACY) -> list[tuple[str, str]]:
    """Place and setting of each line of the table."""
    return [(cells[0], cells[1]) for cells in table_of(note_of(rows, objectives))]


# Ranking


def test_the_note_begins_with_the_answer_and_ranks_the_settings(golden: Golden) -> None:
    rows = [*seeded(0.1, 0.90, 0.92), *seeded(0.2, 0.95, 0.93), *seeded(0.4, 0.5)]
    note = note_of(rows, command="paceline train best.yaml")
    assert best_of(note) == "optimizer.lr=0.2"
    assert blocks_of(note) == ["paceline train best.yaml"]
    assert table_of(note) == [
        ["1", "optimizer.lr=0.2", "0.94 ± 0.014", "500", "finished", "2"],
        ["2", "optimizer.lr=0.1", "0.91 ± 0.014", "500", "finished", "2"],
        ["3", "optimizer.lr=0.4", "0.5", "500", "finished", "1"],
    ]
    assert re.findall(r"[\d,]+", note.splitlines()[-1]) == ["5", "5,000", "20"]  # trials, samples, worker-seconds
    golden(note)
    assert best_of(note_of(rows, [Objective("val/accuracy", "min")])) == "optimizer.lr=0.4"
    assert best_of(note_of(rows, best="0100")) == "optimizer.lr=0.1"


def test_settings_that_break_a_constraint_have_no_place_and_are_not_the_best() -> None:
    broken = {"val/loss < 1": 0.5}
    rows = [row(0, 0.9, violations=broken), row(1, 0.5), row(2, 0.7), row(3, 0.99, state="pruned")]
    assert best_of(note_of(rows)) == "lr=2"
    lines = [(cells[0], cells[1], cells[4]) for cells in table_of(note_of(rows))]
    assert [line[:2] for line in lines] == [("1", "lr=2"), ("2", "lr=1"), ("", "lr=0"), ("", "lr=3")]
    assert lines[2][2].startswith("infeasible: val/loss")
    assert "break a constraint" in note_of(rows[:1])
    seeds = [row(0, 0.9, 1, seed="0", violations=broken), row(1, 0.9, 1, seed="1", violations={"val/loss < 1": -0.6})]
    assert best_of(note_of([*seeds, row(2, 0.5)])) == "lr=1"


def test_settings_with_fewer_seeds_come_last_among_those_with_a_value() -> None:
    rows = [row(0, 0.99, 1, seed="0"), row(1, None, 1, seed="1", state="failed")]
    rows += [row(2, 0.5, 2, seed="0"), row(3, 0.7, 2, seed="1"), row(4, 0.65, 3, seed="0"), row(5, 0.65, 3, seed="1")]
    rows += [row(6, 0.999, 4, state="pruned"), row(7, None, 5, state="failed")]
    assert ranking(rows) == [("1", "lr=3"), ("2", "lr=2"), ("3", "lr=1"), ("", "lr=4"), ("", "lr=5")]
    assert table_of(note_of(rows))[0][2] == "0.65 ± 0"
    twice = [row(0, 0.5, 1, seed="0"), row(1, 0.5, 1, seed="0"), row(2, 0.6, 2, seed="0")]
    assert ranking(twice)[0] == ("1", "lr=2")  # a point that was drawn twice is no more certain


def test_further_objectives_decide_where_the_first_one_does_not() -> None:
    measured = ({"seconds": 9.0}, {"seconds": 2.0}, {})
    rows = [row(number, metrics={"val/accuracy": 0.5, **more}) for number, more in enumerate(measured, 1)]
    goals = [*ACCURACY, Objective("seconds", "min")]
    assert [setting for _, setting in ranking(rows, goals)] == ["lr=2", "lr=1", "lr=3"]


def test_settings_without_a_finished_trial_are_shown_below_without_a_rank() -> None:
    pruned = {"state": "pruned", "lr": 0.3, "samples_per_second": 40.0}
    rows = [
        row(1, state="failed"),
        row(2, 0.99, **pruned),
        row(3, 0.75, **pruned),
        row(4, 0.25, 0.4),
        row(5, 0.5, 0.4, state="pruned"),
    ]
    assert table_of(note_of(rows)) == [
        ["1", "lr=0.4", "0.25", "", "1 finished, 1 pruned", "2"],
        ["", "lr=0.3", "0.99, 0.75", "40", "pruned", "2"],
        ["", "lr=1", "", "", "failed", "1"],
    ]
    many = [row(number, number / 10, **pruned) for number in range(5)]
    assert table_of(note_of(many))[0][2] == "0, 0.1, 0.2, ..."


def test_trials_that_did_not_finish_are_named_with_their_cost(golden: Golden) -> None:
    rows = [
        *seeded(0.1, 0.9),
        *(row(number, 0.99, state="pruned", reason="worse than half", seconds=3.0, samples=10) for number in (1, 2)),
        row(3, state="oom", reason="no memory", seconds=1.0, samples=5),
        row(4, state="skipped", reason="the batch is too large"),
        row(5, state="running"),
    ]
    note = sweep_note("n", "interrupted", "Ctrl-C", ACCURACY, rows)
    assert best_of(note) == "optimizer.lr=0.1"  # a pruned trial's value is no result
    listed = re.findall(r"^- (\d+) \*\*(\w+)\*\* \(([\d, ]+)\)", note, re.MULTILINE)
    assert listed == [("2", "pruned", "0001, 0002"), ("1", "oom", "0003"), ("1", "skipped", "0004")]
    spent = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", note.splitlines()[-1])]
    assert spent == [6, 1025, 11, 5, 1, 1, 20, 6, 2]  # trials, samples and seconds: of all, of failed, of pruned ones
    golden(note.rpartition("|\n")[2])


def test_values_of_a_setting_are_short_in_the_note_and_whole_in_the_table_of_trials() -> None:
    rows = [row(1, 0.5, setting={"lr": 0.012345678901234567, "wide": True, "size": 123456})]
    assert best_of(note_of(rows)) == "lr=0.01235, wide=true, size=123456"
    assert "0.012345678901234567" in trials_csv(rows)


@pytest.mark.parametrize("rows", [[row(1, state="failed"), row(2, float("nan"))], []], ids=["no value", "no trial"])
def test_a_sweep_without_a_result_has_no_best_setting(rows: list[TrialRow]) -> None:
    note = sweep_note("n", "failed", None, ACCURACY, rows)
    assert best_of(note) == ""
    assert [cells[0] for cells in table_of(note)] == [""] * len(rows)


# Changes and pictures


def test_the_changes_of_the_best_config_are_yaml_that_cannot_end_its_block(golden: Golden) -> None:
    part = changes_part({"optimizer.lr": ("0.1", "0.05")})
    assert part in note_of([row(0, 0.5, 1)], changes={"optimizer.lr": ("0.1", "0.05")})
    assert blocks_of(part) == ["optimizer.lr: 0.05  # was 0.1"]
    golden(part)
    odd = {"a\n```\n<b>": ("```", "x\n```\n# <script>"), **{f"k{n}": ("1", "y" * 999) for n in range(MOST_CHANGES)}}
    [block] = blocks_of(changes_part(odd))
    lines = block.splitlines()
    assert len(lines) == MOST_CHANGES + 1
    assert lines[-1].startswith("#")
    assert max(map(len, lines)) < 3 * LONGEST_VALUE


def test_pictures_are_shown_where_the_run_is_known_and_named_otherwise() -> None:
    assert pictures_part({}, "abc") == ""
    named = pictures_part({"a.png": "what"}, "")
    assert "![" not in named
    assert "a.png" in named
    shown = pictures_part({"a b&c.png": SCRIPT}, "a/b?c")
    assert "](get-artifact?path=a%20b%26c.png&run_uuid=a%2Fb%3Fc)" in shown
    assert "<script>" not in shown
    assert "[x](" not in shown


# Text of users


def test_text_of_users_is_text_wherever_it_stands() -> None:
    rows = [
        TrialRow(SCRIPT, {SCRIPT: SCRIPT}, "finished", metrics={SCRIPT: 0.5}, seed=SCRIPT),
        TrialRow("1", {SCRIPT: "b"}, "failed", reason=SCRIPT),
    ]
    more: dict[str, Any] = {"pictures": pictures_part({"pareto.png": "front"}, "abc"), "changes": {"a": ("1", "2")}}
    command = f"```{SCRIPT}"
    note = sweep_note(SCRIPT, "stopped", SCRIPT, [Objective(SCRIPT, "max")], rows, command=command, **more)
    outside = outside_blocks(note)
    theirs = outside.replace("![front](", "").replace("`best.yaml`", "")
    assert not re.search(r"<script|(?<!\\)\[|://\w|www\.|@\w|(?<!\\)`|\*\*d", theirs)
    assert outside.count("![") == outside.count("get-artifact") == 1
    table = [line for line in outside.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}
    assert len(blocks_of(note)) == 2


# Size


@pytest.mark.parametrize(("count", "length"), [(63, 5000), (300, 400)])
def test_a_long_note_is_cut_by_rows(count: int, length: int) -> None:
    rows = [row(number, number / count, setting={"|" * length: number}) for number in range(count)]
    for number in (1, 2):
        rows.append(row(count + number, state="failed", reason=f"{number}" + "|" * 5000, setting={"z": number}))
    note = sweep_note("x" * 5000, "finished", None, ACCURACY, rows)
    assert len(note) <= TAG_LENGTH
    shown = len(table_of(note))
    assert 1 <= shown <= 20
    assert re.search(rf"^\W*and {count + 2 - shown}\b", note, re.MULTILINE)


def test_everything_at_once_fits_a_tag_with_its_pictures() -> None:
    long = {f"key{number}": "v" * 50 for number in range(9)}
    rows = [row(number, float(number), setting={**long, "n": number}) for number in range(500)]
    changes = {f"some.key{n}{'k' * 99}": ("1" * 200, "2" * 200) for n in range(100)}
    pictures = pictures_part({f"{n}.png": "what it shows" for n in range(4)}, "a" * 32)
    note = sweep_note("m" * 300, "stopped", "why" * 300, ACCURACY, rows, None, "c" * 900, None, changes, pictures)
    assert len(note) <= TAG_LENGTH - 200
    assert note.endswith(pictures)
    assert table_of(note)[0][0] == "1"


# Beside the note


def test_the_points_of_the_parent_count_ended_trials() -> None:
    endings = {"finished": 1, "oom": 1, "failed": 1, "skipped": 1, "pruned": 1}
    points = {point.key: (point.value, point.step) for point in sweep_points(endings, {"val/accuracy": 0.5}, 7)}
    assert points == {
        metrics.best_metric("val/accuracy"): (0.5, 5),
        metrics.trials_metric("finished"): (1.0, 5),
        metrics.trials_metric("failed"): (2.0, 5),
        metrics.trials_metric("pruned"): (1.0, 5),
    }
    with pytest.raises(ValueError, match="oom"):
        metrics.trials_metric("oom")


def test_the_table_of_trials_has_a_column_for_each_key() -> None:
    rows = [row(1, 0.5), row(2, state="failed", reason='a "b", c', setting={"scheduler.name": "step"})]
    first, second = csv.DictReader(io.StringIO(trials_csv(rows)))
    assert (first["lr"], first["scheduler.name"], first["val/accuracy"]) == ("1", "", "0.5")
    assert (second["lr"], second["scheduler.name"], second["reason"]) == ("", "step", 'a "b", c')
