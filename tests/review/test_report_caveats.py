"""What a report says beside its figures: which speeds cannot be compared, and which files no commit has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.review.finding import FoundRun
from paceline.review.report.speeds import compared
from paceline.sweeps.results.curves import places_of
from paceline.tracking import metrics
from paceline.tracking.git_state import changed_and_untracked
from paceline.tracking.journal import Journal
from paceline.tracking.note import summary
from paceline.tracking.provenance import config_not_in_commit
from review.report_folders import Page, config, curve, made_run, made_sweep, page_of, some_trials, trial
from review.test_report import STAMP

COMMAND = "paceline train quick.yaml trainer.epochs=3"


def stamped(**changes: Any) -> dict[str, str]:
    return {metrics.SPEED_STAMP: json.dumps({**STAMP, **changes})}


def busy_sweep(tmp_path: Path, loads: Mapping[str, float]) -> FoundRun:
    """A sweep while whose trials other programs used these shares of the cores."""
    found = made_sweep(tmp_path, some_trials(), trial_options={"later": stamped()})
    for name, load in loads.items():
        journal = Journal(found.folder / "trials" / name / "tracking" / "journal.jsonl")
        journal.append([("tags", {"tags": stamped(other_load_start=load)})])
        journal.close()
    return found


# Speeds


def test_speeds_that_cannot_be_compared_say_so_where_they_are_shown_first(tmp_path: Path) -> None:
    page = page_of(busy_sweep(tmp_path, {"0005": 0.7, "0001": 0.18}))
    caveat = "* These speeds cannot be compared: other programs used 18% to 70% of the cores at their start or end"
    caveat = caveat.replace("18% to", "18 to")
    assert page.words.count(caveat) == 2  # under the table, and under the Pareto front
    assert "samples/s * time * †" in page.words
    assert "samples_per_second (higher is better) *" in page.words
    assert [each["href"] for each in page.all("a")].count("#speeds") == 3  # and in the navigation


def test_where_speeds_can_be_compared_there_is_no_caveat(tmp_path: Path) -> None:
    for found in (busy_sweep(tmp_path / "a", {}), made_sweep(tmp_path / "b", some_trials())):
        words = page_of(found).words
        assert "samples/s time †" in words
        assert "cannot be compared" not in words


def test_some_of_the_speeds(tmp_path: Path) -> None:
    words = page_of(busy_sweep(tmp_path, {"0001": 0.4})).words
    caveat = "Not all of these speeds can be compared: other programs used 40% of the cores at its start or end"
    assert f"{caveat} (trial 0001)" in words


def test_equal_reasons_are_one_line_with_the_range_of_their_figures() -> None:
    tags = {
        "0": stamped(other_load_start=0.7, other_load_end=0.66),
        "1": stamped(other_load_start=0.55, other_load_end=0.55),
        "2": stamped(other_load_end=0.18, measured_steps=4),
        "3": stamped(device="{H100}", measured_steps=6),
    }
    assert compared(tags, "0").reasons == {
        "other programs used 18 to 70% of the cores at its start or end": ["0", "1", "2"],
        "its speed was measured over 4 to 6 steps, fewer than 10": ["2", "3"],
        "they ran on different devices: cpu and (H100)": ["3"],
    }


def test_a_comparison_counts_trials() -> None:
    found = compared({"0": stamped(), "1": stamped(), "2": stamped(torch="3"), "3": {}}, "0")
    assert (found.alike, found.others, found.unknown, found.is_known) == (1, 2, 1, True)
    assert found.doubt.startswith("Not all of these speeds can be compared: they ran with different versions of torch")
    assert not compared({"0": {}, "1": stamped()}, "0").is_known
    assert compared({"0": {}, "1": stamped()}, "0").doubt == ""


# Tables and pictures of a sweep


def test_the_front_has_the_numbers_of_the_ranking(tmp_path: Path) -> None:
    trials = [trial(n, 0.9 - n / 10, **{"optimizer.lr": 0.1 + n}) for n in range(4)]
    trials[2] = trial(2, 0.1, **trials[2].overrides)  # bettered by 3 in both
    own = config(sweep={"space": {"optimizer.lr": [0.1, 1.1, 2.1, 3.1]}, "metric": "val/accuracy"})
    page = page_of(made_sweep(tmp_path, trials, own=own))
    assert places_of(trials, [("val/accuracy", "max")]) == {"0000": 1, "0001": 2, "0003": 3, "0002": 4}
    assert [each["value"] for each in page.all("li") if "value" in each] == ["1", "2", "3"]
    assert "3 of 4 settings that no other one betters in both; numbers as in the ranking" in page.words
    marks = page.source.split('class="mark">')[1:]
    assert sorted(mark[0] for mark in marks) == ["1", "2", "3"]
    assert page.words.index("lr=0.1") < page.words.index("lr=1.1") < page.words.index("lr=3.1")


def test_all_seeds_of_a_setting_have_its_place() -> None:
    places = places_of(some_trials(), [("val/accuracy", "max")])
    assert places["0004"] == places["0005"] == 1
    assert "0011" in places or len(places) == 10


def test_no_two_columns_have_the_same_title(tmp_path: Path) -> None:
    own = config(sweep={"space": {"optimizer.lr": [0.1, 0.2]}, "metric": "val/accuracy"})
    trials = [trial(n, 0.5 + n / 10, **{"optimizer.lr": (n + 1) / 10}) for n in range(2)]
    words = page_of(made_sweep(tmp_path, trials, own=own)).words
    assert "peak memory finished trials 1 0.2" in words
    assert "is in the time of its first trial, such as 0000." in words


def test_a_recorded_picture_has_its_title_in_itself_alone(tmp_path: Path) -> None:
    page = page_of(made_sweep(tmp_path, some_trials(), artifacts={"importance.png": "PNG"}))
    assert "What val/accuracy depends on" not in page.words
    assert page.all("img")[0]["alt"] == "What val/accuracy depends on"


# Where it comes from


@pytest.mark.parametrize(
    ("given", "listed", "found"),
    [
        ("quick.yaml", "quick.yaml (untracked)", True),
        ("quick.yaml", "quick.yaml", True),
        ("./quick.yaml", "own.py\nquick.yaml (added)", True),
        ("quick.yaml", "inner/quick.yaml (untracked)", True),
        ("/home/me/inner/quick.yaml", "inner/quick.yaml (untracked)", True),
        ("mine/quick.yaml", "mine/ (untracked)", True),
        ("../inner/quick.yaml", "quick.yaml (untracked)", True),
        ("configs/quick.yaml", "quick.yaml (untracked)", False),
        ("configs/quick.yaml", "old/quick.yaml (untracked)", False),
        ("quick.yaml", "other.yaml (untracked)", False),
        ("quick.yaml", "very_quick.yaml", False),
        ("quick.yaml", "", False),
    ],
)
def test_a_config_that_the_commit_does_not_have_is_known(given: str, listed: str, found: bool) -> None:
    tags = {metrics.COMMAND: f"paceline train {given} a.b=c.yaml", metrics.GIT_CHANGED_FILES: listed}
    assert config_not_in_commit({**tags, metrics.GIT_COMMIT: "abc"}) == (given if found else "")
    assert config_not_in_commit(tags) == ""


def test_odd_commands_name_no_config() -> None:
    for command in ("", "python 'unended", "paceline ui", "x tracking.target=a.yaml"):
        tags = {metrics.COMMAND: command, metrics.GIT_COMMIT: "abc", metrics.GIT_CHANGED_FILES: "a.yaml (untracked)"}
        assert config_not_in_commit(tags) == ""


def test_changed_and_untracked_files_are_told_apart() -> None:
    listed = "a.py (deleted)\nb.py\nc.yaml (untracked)\nd/ (untracked)\n... and 7 more"
    found = changed_and_untracked({metrics.GIT_CHANGED_FILES: listed})
    assert found == (["a.py (deleted)", "b.py"], ["c.yaml", "d/", "... and 7 more"])
    assert changed_and_untracked({}) == ([], [])


def untracked(tmp_path: Path, **changes: str) -> Page:
    tags = {metrics.COMMAND: COMMAND, metrics.GIT_COMMIT: "abc123", metrics.GIT_DIRTY: "false"}
    return page_of(made_run(tmp_path, curve(0.2), tags={**tags, **changes}))


def test_a_run_of_an_untracked_config_offers_the_recorded_one(tmp_path: Path) -> None:
    words = untracked(tmp_path, **{metrics.GIT_CHANGED_FILES: "quick.yaml (untracked)"}).words
    again = words[words.index("How to get it again", words.index("optimizer step")) :]
    assert "git checkout abc123 uv run paceline train " in again
    assert "/tracking/artifacts/config.yaml The commit does not have quick.yaml as it was." in again
    assert f"It was started by {COMMAND} ." in again
    assert "files changed since the commit none untracked files quick.yaml config as recorded" in words


def test_a_run_of_a_config_of_the_commit_is_got_again_by_its_command(tmp_path: Path) -> None:
    words = untracked(tmp_path, **{metrics.GIT_CHANGED_FILES: "other.py", metrics.GIT_DIRTY: "true"}).words
    assert f"git checkout abc123 {COMMAND}" in words
    assert "files changed since the commit other.py" in words
    assert "untracked files" not in words
    assert "does not have" not in words


def test_the_note_names_the_artifact_where_the_commit_lacks_the_config() -> None:
    tags = {metrics.COMMAND: COMMAND, metrics.GIT_COMMIT: "abc123", metrics.GIT_CHANGED_FILES: "quick.yaml (untracked)"}
    assert "That commit does not have quick.yaml as it was: take the artifact config.yaml" in summary(
        "n", {}, "FINISHED", None, tags
    )
    assert "artifact" not in summary("n", {}, "FINISHED", None, {**tags, metrics.GIT_CHANGED_FILES: ""})
