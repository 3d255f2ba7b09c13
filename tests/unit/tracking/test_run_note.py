"""The picture and the note on a run's page."""

import math
from pathlib import Path

import pytest
from PIL import Image

from paceline.reports import theme
from paceline.tracking import metrics
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_note import loss_curve, summary
from paceline.tracking.run_record import TAG_LENGTH
from paceline.tracking.thinned_curves import curves_of
from support.golden import Golden
from support.tracking.markdown import blocks_of, outside_blocks, table_of


def curve(key: str, values: list[float]) -> list[MetricPoint]:
    return [MetricPoint(key, value, step, step) for step, value in enumerate(values, 1)]


def has_color(picture: Path, color: str) -> bool:
    wanted = tuple(bytes.fromhex(color[1:]))
    with Image.open(picture) as image:
        colors = image.convert("RGB").getcolors(maxcolors=1 << 24) or []
    return any(found == wanted for _, found in colors)


def test_the_picture_shows_both_losses_and_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    both, one, none = (tmp_path / f"{name}.png" for name in ("both", "one", "none"))
    training = curve("train/loss", [2.0, math.nan, 1.0, math.inf, 0.5])
    loss_curve(curves_of([*training, *curve("val/loss", [2.0, 1.0])]), both, "mnist $cnn$_1")
    loss_curve(curves_of(training), one)
    assert [has_color(both, color) for color in theme.SERIES[:2]] == [True, True]
    assert [has_color(one, color) for color in theme.SERIES[:2]] == [True, False]
    with pytest.raises(ValueError, match=r"."):
        loss_curve(curves_of([*curve("lr", [0.1]), *curve("train/loss", [math.nan])]), none)
    assert not none.exists()


def test_the_note_has_last_and_best_values(golden: Golden) -> None:
    points = [
        *curve("val/loss", [2.0, 1.0, 1.5]),
        *curve("val/accuracy", [0.5, 0.9, 0.8]),
        *curve("samples_per_second", [1000.0, 12345.0]),
        MetricPoint("samples_per_second_overall", 9876.0, 3, 3),
        *curve("peak_memory_bytes", [2.0**30, 1.5 * 2**30]),
        *curve("rank_seconds/max", [1.0, 2.0]),
        *curve("validation_epoch", [1.0, 2.0, 3.0]),
        *curve("lr", [0.1, 0.05]),
        *curve("grad_norm", [3.0, 2.0]),
        *curve("skipped_steps", [1.0, 2.0]),
        *curve("data_wait_fraction", [0.5, 0.25, 0.75]),
        *curve("train/loss", [math.nan]),
    ]
    tags = {metrics.COMMAND: "paceline train a.yaml", metrics.GIT_COMMIT: "abc123", metrics.GIT_DIRTY: "true"}
    note = summary("mnist-cnn", curves_of(points), "FINISHED", None, tags)
    rows = {cells[0].replace("\\", ""): cells[1:] for cells in table_of(note)}
    assert list(rows)[:3] == ["train/loss", "val/accuracy", "val/loss"]
    assert list(rows)[3:] == sorted(list(rows)[3:])
    assert not {"rank_seconds/max", "validation_epoch"} & rows.keys()
    assert rows["val/loss"] == ["1.5", "1", "2"]
    assert rows["val/accuracy"] == ["0.8", "0.9", "2"]
    assert (rows["train/loss"], rows["lr"]) == (["nan", "", ""], ["0.05", "", ""])
    assert blocks_of(note) == ["git checkout abc123\npaceline train a.yaml"]
    golden(note)


def test_the_command_of_an_extension_trains_from_scratch() -> None:
    """`--extend` would extend this run, and `--resume` finds nothing unfinished."""
    command = "paceline train 'my a.yaml' trainer.epochs=4 --extend"
    tags = {metrics.COMMAND: command, metrics.EXTENDED_FROM: "20261124-180731-548a55"}
    note = summary("n", curves_of(curve("val/loss", [1.0])), "FINISHED", None, tags)
    assert blocks_of(note) == ["paceline train 'my a.yaml' trainer.epochs=4"]
    assert "| best of the extension |" in note
    resumed = summary("n", {}, "FINISHED", None, {metrics.COMMAND: "paceline train a.yaml --resume"})
    assert blocks_of(resumed) == ["paceline train a.yaml"]
    cut = summary("n", {}, "FINISHED", None, {metrics.COMMAND: "paceline train 'a.y"})
    assert blocks_of(cut) == ["paceline train 'a.y"]


def test_a_run_without_an_overall_speed_has_that_of_its_last_window_in_the_note() -> None:
    note = summary("n", curves_of(curve("samples_per_second", [1000.0, 12345.0])), "KILLED", None, {})
    assert "12,345" in note.partition("|")[0]


def test_many_warnings_leave_room_for_the_rest_of_the_note() -> None:
    tags = {metrics.COMMAND: "paceline train a.yaml"}
    warnings = [f"the checkpoint of step {step} could not be stored: {'reason ' * 100}" for step in range(200)]
    note = summary("n", curves_of(curve("val/loss", [1.0])), "FINISHED", None, tags, warnings=warnings)
    assert len(note) < TAG_LENGTH
    assert table_of(note)
    assert blocks_of(note) == ["paceline train a.yaml"]
    assert "- 190 earlier ones" in note
    assert "of step 199 " in note


def test_the_words_of_users_cannot_become_markup() -> None:
    reason, warnings = "```\n<script>alert(1)</script>\n```", ["first\n# <script> [a](b) [code]", "second [code]"]
    points = [MetricPoint("a|<b>", 1.0, 1, 1)]
    note = summary("<img src=x>|**b**", curves_of(points), "FAILED", reason, {}, warnings=warnings)
    listed = [line for line in note.splitlines() if line.startswith("- ")]
    assert listed == [r"- first \# &lt;script&gt; \[a\](b) \[code\]", r"- second \[code\]"]
    assert "<img" not in note
    assert "**b**" not in note
    assert table_of(note)[0][0] == r"a\|&lt;b&gt;"
    assert len(blocks_of(note)) == 1  # the reason's own fences are gone, so it stays within ours
    assert "<script>" not in outside_blocks(note)
