"""The report of a run that was resumed: all of its attempts, and where its curves go on; and which curves are drawn."""

import json
from calendar import timegm
from pathlib import Path
from time import strptime

import pytest

from paceline.engine.manifest import MANIFEST
from paceline.review.finding import FoundRun
from paceline.review.report.numbers import axis_formatter, formatter
from paceline.review.report.run_charts import run_charts
from paceline.tracking import metrics
from paceline.tracking.curves import curves_of
from paceline.tracking.journal import Journal
from paceline.tracking.points import Point
from review.report_folders import Page, curve, made_run, page_of

SPEED, MEMORY, PEAK = metrics.SAMPLES_PER_SECOND, metrics.MEMORY_BYTES, metrics.PEAK_MEMORY_BYTES


def at(moment: str) -> int:
    """A time of the day in the world's time, in milliseconds since 1970."""
    return timegm(strptime(f"20261122 {moment}", "%Y%m%d %H:%M:%S")) * 1000


def points(key: str, first: int, last: int, moment: str, value: float = 1.0) -> list[tuple[str, dict[str, object]]]:
    """Journal entries of a metric at every tenth step, a second after each other."""
    found = [Point(key, value, step, at(moment) + 100 * step) for step in range(first, last + 1, 10)]
    return [("point", point.to_json()) for point in found]


def status(words: str, moment: str) -> tuple[str, dict[str, object]]:
    return "status", {"status": words, "time_ms": at(moment)}


def resumed(tmp_path: Path, *entries: tuple[str, dict[str, object]], began: str = "08:33:29") -> FoundRun:
    """A run that was started at 08:31:59, with these entries in its journal, and launched for the last time later."""
    made = made_run(tmp_path, [], status=None)
    folder = made.folder.with_name("20261122-083159-b76094")
    made.folder.rename(folder)
    file = folder / "tracking" / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "start_time_ms": at(began)}))
    journal = Journal(folder / "tracking" / "journal.jsonl")
    journal.append(entries)
    journal.close()
    return FoundRun("run", folder)


def interrupted_once(tmp_path: Path) -> FoundRun:
    return resumed(
        tmp_path,
        *points("train/loss", 10, 80, "08:32:30"),
        *points(SPEED, 10, 80, "08:32:30"),
        status("KILLED", "08:32:46"),
        status("RUNNING", "08:33:29"),
        ("tags", {"tags": {metrics.CHANGED_PARAMS: "trainer.epochs: 6 -> 12"}}),
        *points("train/loss", 90, 190, "08:33:50"),
        *points(SPEED, 90, 190, "08:33:50"),
        status("FINISHED", "08:34:16"),
    )


def test_a_resumed_run_tells_its_whole_time_and_what_was_changed(tmp_path: Path) -> None:
    page = page_of(interrupted_once(tmp_path))
    assert "started 2026-11-22 08:31:59 UTC · resumed after step 80 · took 2 min 17 s" in page.words
    assert "43 s of it between its 2 attempts" in page.words
    assert "It was resumed after step 80; changed on the way: trainer.epochs: 6 -> 12." in page.words
    assert "attempts" in page.titles


def test_a_resumed_run_tells_each_attempt(tmp_path: Path) -> None:
    words = page_of(interrupted_once(tmp_path)).words
    first = "1 2026-11-22 08:31:59 UTC 0 80 47 s interrupted"
    assert f"{first} 2 2026-11-22 08:33:29 UTC 80 190 47 s finished" in words


def test_a_run_that_was_lost_without_a_word_was_resumed_too(tmp_path: Path) -> None:
    before, after = points("train/loss", 10, 80, "08:32:30"), points("train/loss", 90, 190, "08:33:50")
    words = page_of(resumed(tmp_path, *before, *after, status("FINISHED", "08:34:16"))).words
    assert "started 2026-11-22 08:31:59 UTC · resumed after step 80 · took 2 min 17 s" in words
    assert "80 39 s lost 2" in words


def test_a_run_that_was_never_resumed_says_nothing_of_it(tmp_path: Path) -> None:
    page = page_of(made_run(tmp_path, curve(0.2)))
    assert "resumed" not in page.words
    assert "attempts" not in page.titles
    assert not [each for each in page.all("line") if each.get("class") == "resumed"]


def test_curves_have_a_mark_and_those_of_the_machine_a_gap_at_the_resume(tmp_path: Path) -> None:
    page = page_of(interrupted_once(tmp_path))
    drawn = [each["d"] for each in page.all("path") if each.get("class") == "curve"]
    assert [route.count("M") for route in drawn] == [1, 2]  # the loss goes on, the speed starts anew
    assert len([each for each in page.all("line") if each.get("class") == "resumed"]) == 2
    assert "resumed after step 80" in page.source


def test_the_peak_of_the_memory_is_the_highest_of_all_attempts(tmp_path: Path) -> None:
    page = page_of(made_run(tmp_path, [Point(PEAK, size * 2.0**20, step, step) for step, size in ((1, 771), (2, 768))]))
    assert page.words.count("771 MiB") == 2  # the tile and the table
    tile = page.source[page.source.index(">peak memory<") :]
    assert "771" in tile[: tile.index("</div>")]


def test_a_best_value_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    losses = [Point("val/loss", value, step, step) for step, value in ((100, 0.3), (144, 0.1), (192, 0.2))]
    found = made_run(tmp_path, losses)
    best = "val/loss 0.2, best 0.1 at step 144"
    assert f"{best} (" not in page_of(found).words  # no checkpoints at all are told in their own section
    for step, words in ((192, f"{best} (no checkpoint of it is kept)"), (144, best)):
        folder = found.checkpoints / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text(json.dumps({"files": {}}))
        assert words in page_of(found).words
    assert "no checkpoint of it" not in page_of(found).words


# Which curves are drawn, and how


def chart_titles(found: list[Point]) -> list[str]:
    return [each["aria-label"] for each in Page(run_charts(curves_of(found))).all("svg")]


def values(key: str, *figures: float) -> list[Point]:
    return [Point(key, value, step, step) for step, value in enumerate(figures, 1)]


def test_what_has_few_points_is_left_to_the_table() -> None:
    few = [*values("val/f1", 1, 2), *values(metrics.SAMPLES_PER_SECOND_OVERALL, 1, 2, 3)]
    costs = values(metrics.cost_metric("price"), 1, 2, 3)
    assert chart_titles([*few, *costs, *values("lr", 1, 2, 3)]) == ["lr"]
    assert chart_titles([*values("train/loss", 3, 2, 1), *values("val/loss", 2, 1)]) == ["loss"]
    assert "Too few values" in run_charts(curves_of(few))


def test_the_machines_sizes_are_apart_by_what_they_are_of() -> None:
    names = [name for name in metrics.HOST_METRICS if "megabytes" in name]
    found = [point for name in names for point in values(metrics.system_metric(name), 1, 2, 3)]
    assert chart_titles(found) == ["system: disk", "system: memory", "system: network"]


def test_a_line_upon_another_one_is_dashed() -> None:
    chart = run_charts(curves_of([*values(MEMORY, 1, 2, 3), *values(PEAK, 1, 2, 3)]))
    shapes = [each["class"] for each in Page(chart).all("path") if "curve" in each.get("class", "")]
    assert shapes == ["curve", "curve dashed"]
    assert "peak_memory_bytes (dashed), last" in chart
    same = [*values("system/network_receive_megabytes", 1, 2, 3), *values("system/network_transmit_megabytes", 1, 2, 3)]
    assert run_charts(curves_of(same)).count("curve dashed") == 1


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("cost/core_seconds", 80.0, "1m 20s"),
        ("cost/core_seconds", 3900.0, "1h 5m"),
        ("step_seconds", 12.5, "12.5\N{NARROW NO-BREAK SPACE}s"),
        ("system/disk_available_megabytes", 72642.2, "72.6\N{NARROW NO-BREAK SPACE}GB"),
        ("system/disk_usage_percentage", 40.0, "40\N{NARROW NO-BREAK SPACE}%"),
    ],
)
def test_axes_have_units_in_few_characters(key: str, value: float, shown: str) -> None:
    assert axis_formatter(key)(value) == shown


def test_megabytes_of_machines_are_decimal() -> None:
    assert formatter("system/network_receive_megabytes")(0.001056) == "1.06\N{NARROW NO-BREAK SPACE}kB"
    assert formatter("system/network_receive_megabytes")(0.0) == "0\N{NARROW NO-BREAK SPACE}B"
