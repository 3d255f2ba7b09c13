"""The note of a sweep's own run: how settings are ranked, what the best one changes, and that text stays text."""

from paceline.tracking.note_parts import LONGEST_VALUE, MOST_CHANGES, changes_part, pictures_part
from paceline.tracking.record import TAG_LENGTH
from paceline.tracking.sweep_note import Objective, TrialRow, sweep_note

ACCURACY = [Objective("val/accuracy", "max")]
SCRIPT = "<script>alert(1)</script>[x](javascript:1)|`![y](http://a.b/c.png)"


def row(number: int, accuracy: float | None, lr: float, seed: str = "", state: str = "finished") -> TrialRow:
    values = {} if accuracy is None else {"val/accuracy": accuracy}
    return TrialRow(f"{number:04}", {"lr": lr}, state, metrics=values, seed=seed)


def ranking(rows: list[TrialRow], objectives: list[Objective] = ACCURACY) -> list[tuple[str, str]]:
    """Place and setting of each line of the table."""
    note = sweep_note("mnist", "finished", None, objectives, rows)
    lines = [line.split("|") for line in note.splitlines() if line.startswith("|")]
    return [(cells[1].strip(), cells[2].strip()) for cells in lines[2:]]


def test_settings_with_fewer_seeds_come_last_among_those_with_a_value() -> None:
    rows = [row(0, 0.99, 1, "0"), row(1, None, 1, "1", "failed")]
    rows += [row(2, 0.5, 2, "0"), row(3, 0.7, 2, "1"), row(4, 0.65, 3, "0"), row(5, 0.65, 3, "1")]
    rows += [row(6, 0.999, 4, "0", "pruned"), row(7, None, 5, "0", "failed")]
    assert ranking(rows) == [("1", "lr=3"), ("2", "lr=2"), ("3", "lr=1"), ("", "lr=4"), ("", "lr=5")]
    assert "**Best: lr=3** with val/accuracy 0.65 ± 0 (2 seeds)" in sweep_note("m", "finished", None, ACCURACY, rows)


def test_a_point_that_was_drawn_twice_is_no_more_certain() -> None:
    rows = [row(0, 0.5, 1, "0"), row(1, 0.5, 1, "0"), row(2, 0.6, 2, "0")]
    assert ranking(rows)[0] == ("1", "lr=2")


def test_further_objectives_decide_where_the_first_one_does_not() -> None:
    rows = [
        TrialRow("0", {"lr": 1}, "finished", metrics={"val/accuracy": 0.5, "seconds": 9.0}),
        TrialRow("1", {"lr": 2}, "finished", metrics={"val/accuracy": 0.5, "seconds": 2.0}),
        TrialRow("2", {"lr": 3}, "finished", metrics={"val/accuracy": 0.5}),
    ]
    goals = [*ACCURACY, Objective("seconds", "min")]
    assert [setting for _, setting in ranking(rows, goals)] == ["lr=2", "lr=1", "lr=3"]


def test_what_the_best_config_changes_is_told_as_yaml() -> None:
    note = sweep_note("m", "finished", None, ACCURACY, [row(0, 0.5, 1)], changes={"optimizer.lr": ("0.1", "0.05")})
    assert "\n\n```\noptimizer.lr: 0.05  # was 0.1\n```\n\n" in note
    assert "unchanged" in sweep_note("m", "finished", None, ACCURACY, [row(0, 0.5, 1)], changes={})
    assert "best.yaml" not in sweep_note("m", "finished", None, ACCURACY, [row(0, None, 1)])


def test_changes_cannot_end_their_block_and_are_cut() -> None:
    odd = {"a\n```\n<b>": ("```", "x\n```\n# <script>"), **{f"k{n}": ("1", "y" * 999) for n in range(MOST_CHANGES)}}
    text = changes_part(odd)
    assert text.count("```") == 2
    assert text.splitlines()[-2:] == ["# ... and 1 more", "```"]
    assert max(map(len, text.splitlines()[2:])) < 3 * LONGEST_VALUE


def test_pictures_are_shown_where_the_run_is_known_and_named_otherwise() -> None:
    assert pictures_part({}, "abc") == ""
    assert "![" not in pictures_part({"a.png": "what"}, "")
    shown = pictures_part({"a b&c.png": SCRIPT}, "a/b?c")
    assert "](get-artifact?path=a%20b%26c.png&run_uuid=a%2Fb%3Fc)" in shown
    assert "<script>" not in shown
    assert "[x](" not in shown


def test_text_of_users_is_shown_as_text_wherever_it_stands() -> None:
    odd = TrialRow(SCRIPT, {SCRIPT: SCRIPT}, "finished", metrics={SCRIPT: 0.5}, seed=SCRIPT)
    failed = TrialRow("1", {SCRIPT: "b"}, "failed", reason=SCRIPT)
    pictures = pictures_part({"pareto.png": "front"}, "abc")
    note = sweep_note(
        SCRIPT,
        "stopped",
        SCRIPT,
        [Objective(SCRIPT, "max")],
        [odd, failed],
        pictures=pictures,
        changes={"a": ("1", "2")},
    )
    outside = "".join(note.split("```")[::2])
    assert "<script" not in outside
    assert "[x](" not in outside
    assert outside.count("![") == outside.count("get-artifact") == 1
    cells = [line.replace("\\|", "").count("|") for line in note.splitlines() if line.startswith("|")]
    assert len(set(cells)) == 1


def test_everything_at_once_fits_a_tag_with_its_pictures() -> None:
    long = {f"key{number}": "v" * 50 for number in range(9)}
    rows = [TrialRow(f"{n:04}", {**long, "n": n}, "finished", metrics={"val/accuracy": float(n)}) for n in range(500)]
    changes = {f"some.key{n}{'k' * 99}": ("1" * 200, "2" * 200) for n in range(100)}
    pictures = pictures_part({f"{n}.png": "what it shows" for n in range(4)}, "a" * 32)
    note = sweep_note("m" * 300, "stopped", "why" * 300, ACCURACY, rows, None, "c" * 900, None, changes, pictures)
    assert len(note) <= TAG_LENGTH - 200
    assert note.endswith(pictures)
    assert "| 1 |" in note
