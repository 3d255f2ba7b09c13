"""The report of a run: outcome, metrics, origin, and the attempts of one that was resumed."""

import json
from calendar import timegm
from pathlib import Path
from time import strptime

import pytest

from paceline.engine.manifest import MANIFEST
from paceline.runs.finding import FoundRun
from paceline.tracking import metrics
from paceline.tracking.journal import Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.provenance import config_not_in_commit
from paceline.tracking.run_note import summary
from support.golden import Golden
from support.reports.folders import curve, made_run, page_of, stamped
from support.reports.page import Node, sections

COMMAND = "paceline train quick.yaml trainer.epochs=3"


def headline(page: Node) -> tuple[str, str]:
    attributes = page.classes("headline")[0].attributes
    return attributes["data-status"], attributes["data-step"]


def test_it_shows_outcome_metrics_and_origin(tmp_path: Path) -> None:
    points = [*curve(0.2), *curve(0.1, (50, 100), "val/loss")]
    tags = {metrics.COMMAND: "paceline train some.yaml", metrics.GIT_COMMIT: "abc123", metrics.HOST: "node7"}
    page = page_of(made_run(tmp_path, points, tags=tags, params={"derived.world_size": 2}))
    assert headline(page) == ("finished", "100")
    row = page.one("tr", data_metric="train/loss")
    assert row.cells[1:] == ["0.2357", "0.2357", "100", "0.2357", "0.9165", "10"]
    assert row.values[1] == pytest.approx(0.235674)
    assert page.one(id="again").classes("command")[0].text == "git checkout abc123 paceline train some.yaml"
    assert "node7" in page.one(id="origin").text
    assert "world size 2" in page.one(id="config").text
    assert "global_batch_size: 64" in page.one(id="config").text
    assert sections(page) == ["metrics", "curves", "checkpoints", "config", "again", "origin"]
    assert not [node for node in page.all("title") if "resumed" in node.text]


def test_a_run_that_failed_shows_the_reason(tmp_path: Path) -> None:
    points = [*curve(0.2), *curve(float("nan"), (110,))]
    page = page_of(made_run(tmp_path, points, "failed", status="FAILED", reason="rank 1: out of disk"))
    assert headline(page) == ("failed", "110")
    diverged = page.one(data_diverged="").text
    assert "train/loss" in diverged
    assert "110" in diverged
    assert "rank 1: out of disk" in page.classes("answer")[0].text
    assert headline(page_of(made_run(tmp_path, curve(0.2), "running", status=None))) == ("running", "100")


def test_stragglers_and_what_the_speed_was_measured_on_are_shown(tmp_path: Path) -> None:
    later = {metrics.STRAGGLER: "rank 3 on node7: 1.4 times", **stamped()}
    speeds = page_of(made_run(tmp_path, curve(0.2), later=later)).one(id="speeds")
    assert "rank 3 on node7: 1.4 times" in speeds.one("li").text
    assert "threads per worker 2" in speeds.text


def test_the_peak_of_the_memory_is_the_highest_of_all_attempts(tmp_path: Path) -> None:
    peaks = [MetricPoint(metrics.PEAK_MEMORY_BYTES, size * 2.0**20, n, n) for n, size in enumerate((771, 768))]
    page = page_of(made_run(tmp_path, peaks))
    assert [node.text for node in page.classes("tile") if "771" in node.text]
    assert max(filter(None, page.one("tr", data_metric=metrics.PEAK_MEMORY_BYTES).values)) == 771 * 2**20


def test_a_best_value_without_a_checkpoint_says_so(tmp_path: Path, golden: Golden) -> None:
    losses = [MetricPoint("val/loss", value, step, step) for step, value in ((100, 0.3), (144, 0.1), (192, 0.2))]
    found, told = made_run(tmp_path, losses), []
    for step in (None, 192, 144):
        if step is not None:
            (found.checkpoints / f"step-{step}").mkdir(parents=True)
            (found.checkpoints / f"step-{step}" / MANIFEST).write_text(json.dumps({"files": {}}))
        page = page_of(found)
        told.append(page.classes("answer")[0].text)
        assert len(page.all(data_checkpoint=None)) == len(told) - 1
    assert told[0] == told[2] != told[1]  # a run without checkpoints says so in their own section
    golden("\n".join(told[:2]))


# Attempts


def at(moment: str) -> int:
    """A time of a day, in milliseconds since 1970."""
    return timegm(strptime(f"20261122 {moment}", "%Y%m%d %H:%M:%S")) * 1000


def points(key: str, first: int, last: int, moment: str) -> list[tuple[str, dict[str, object]]]:
    """Journal entries of a metric at every tenth step, a second after each other."""
    found = [MetricPoint(key, 1.0, step, at(moment) + 100 * step) for step in range(first, last + 1, 10)]
    return [("point", point.to_json()) for point in found]


def status(words: str, moment: str) -> tuple[str, dict[str, object]]:
    return "status", {"status": words, "time_ms": at(moment)}


def resumed(tmp_path: Path, *entries: tuple[str, dict[str, object]]) -> Node:
    """The report of a run with these entries in its journal, started at 08:31:59 and launched last at 08:33:29."""
    made = made_run(tmp_path, [], status=None)
    folder = made.folder.with_name("20261122-083159-b76094")
    made.folder.rename(folder)
    file = folder / "tracking" / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "start_time_ms": at("08:33:29")}))
    journal = Journal(folder / "tracking" / "journal.jsonl")
    journal.append(entries)
    journal.close()
    return page_of(FoundRun("run", folder))


FIRST = [*points("train/loss", 10, 80, "08:32:30"), *points(metrics.SAMPLES_PER_SECOND, 10, 80, "08:32:30")]
SECOND = [*points("train/loss", 90, 190, "08:33:50"), *points(metrics.SAMPLES_PER_SECOND, 90, 190, "08:33:50")]


def attempts(page: Node) -> list[tuple[str, list[float | None]]]:
    """State of each attempt, and its steps and seconds."""
    rows = page.one(id="attempts").all("tr", data_attempt=None)
    return [(row.attributes["data-state"], row.values[2:5]) for row in rows]


def starts(page: Node, key: str) -> int:
    """Return how many pieces the line of a metric has."""
    (line,) = [node for node in page.all("g") if any(child.text == key for child in titles_of(node))]
    return line.all("path", clip_path=None)[0].attributes["d"].count("M")


def titles_of(node: Node) -> list[Node]:
    return [child for child in node.children if isinstance(child, Node) and child.tag == "title"]


def test_a_resumed_run_shows_its_attempts_its_time_and_the_changes(tmp_path: Path, golden: Golden) -> None:
    changed = ("tags", {"tags": {metrics.CHANGED_PARAMS: "trainer.epochs: 6 -> 12"}})
    ends = status("KILLED", "08:32:46"), status("RUNNING", "08:33:29"), status("FINISHED", "08:34:16")
    page = resumed(tmp_path, *FIRST, *ends[:2], changed, *SECOND, ends[2])
    assert attempts(page) == [("interrupted", [0, 80, 47]), ("finished", [80, 190, 47])]
    assert "trainer.epochs: 6 -> 12" in page.classes("answer")[0].text
    # the line of the loss continues, that of the speed begins again
    assert [starts(page, key) for key in ("train/loss", metrics.SAMPLES_PER_SECOND)] == [1, 2]
    assert len([node for node in page.all("title") if node.text == "resumed after step 80"]) == 2
    golden(page.one("header").text)


def test_a_run_that_was_lost_without_a_status_was_resumed_too(tmp_path: Path) -> None:
    page = resumed(tmp_path, *FIRST, *SECOND, status("FINISHED", "08:34:16"))
    assert attempts(page) == [("lost", [0, 80, 39]), ("finished", [80, 190, 47])]


# Where it comes from


@pytest.mark.parametrize(
    ("given", "listed", "found"),
    [
        ("quick.yaml", "quick.yaml (untracked)", True),
        ("./quick.yaml", "own.py\nquick.yaml (added)", True),
        ("mine/quick.yaml", "mine/ (untracked)", True),
        ("../inner/quick.yaml", "quick.yaml (untracked)", True),
        ("configs/quick.yaml", "quick.yaml (untracked)", False),
        ("quick.yaml", "very_quick.yaml", False),
        ("quick.yaml", "", False),
    ],
)
def test_a_config_that_the_commit_does_not_have_is_known(given: str, listed: str, found: bool) -> None:
    tags = {metrics.COMMAND: f"paceline train {given} a.b=c.yaml", metrics.GIT_CHANGED_FILES: listed}
    assert config_not_in_commit({**tags, metrics.GIT_COMMIT: "abc"}) == (given if found else "")
    assert config_not_in_commit(tags) == ""
    assert config_not_in_commit({**tags, metrics.GIT_COMMIT: "abc", metrics.COMMAND: "python 'unended"}) == ""


def again(tmp_path: Path, **changes: str) -> Node:
    """The report of a run at a commit with changed files."""
    tags = {metrics.COMMAND: COMMAND, metrics.GIT_COMMIT: "abc123", metrics.GIT_DIRTY: "false"}
    return page_of(made_run(tmp_path, curve(0.2), tags={**tags, **changes}))


def test_a_run_of_an_untracked_config_offers_the_recorded_one(tmp_path: Path) -> None:
    page = again(tmp_path, **{metrics.GIT_CHANGED_FILES: "quick.yaml (untracked)"})
    (command,) = page.one(id="again").classes("command")
    assert command.text.startswith("git checkout abc123 uv run paceline train ")
    assert command.text.endswith("/tracking/artifacts/config.yaml")
    assert {"quick.yaml", COMMAND} <= {node.text for node in page.one(id="again").all("code")}
    tags = {metrics.COMMAND: COMMAND, metrics.GIT_COMMIT: "abc123", metrics.GIT_CHANGED_FILES: "quick.yaml (untracked)"}
    assert "config.yaml" in summary("n", {}, "FINISHED", None, tags)


def test_a_run_of_a_config_of_the_commit_is_repeated_by_its_command(tmp_path: Path) -> None:
    page = again(tmp_path, **{metrics.GIT_CHANGED_FILES: "other.py", metrics.GIT_DIRTY: "true"})
    assert page.one(id="again").classes("command")[0].text == f"git checkout abc123 {COMMAND}"
    assert "other.py" in page.one(id="origin").text
