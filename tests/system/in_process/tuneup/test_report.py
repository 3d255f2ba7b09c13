"""Reports of a tune-up's findings: the answer, the page, the pictures, the note, bars of text."""

import io
import re
import sys
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from paceline.config.tuneup import NOT_AMONG
from paceline.reports import theme
from paceline.tuneups.answer import certainty, headline, tiles
from paceline.tuneups.bars import tables_of
from paceline.tuneups.explanations import explanation, shown_techniques, unhelpful
from paceline.tuneups.mlflow_record import note_of
from paceline.tuneups.outcome import Findings, Quality, TechniqueResult
from paceline.tuneups.pictures import PICTURES, SPEEDS, SPLIT, drawn_pictures, pictures_of
from paceline.tuneups.report_page import report_html
from paceline.tuneups.result import TuneupResult
from paceline.tuneups.stored_findings import findings_json, findings_of, technique_json
from paceline.tuneups.texts import quality_text, technique_cells, without_gain
from support.bench.study_fields import study_fields
from support.golden import Golden
from support.reports.page import Node, page_from, parsed, sections
from support.toys import toy_config
from support.tuneup.findings import findings

HOSTILE = "<script>alert('x')</script>"
UNDECIDED = Quality("undecided", "val/accuracy", -0.01, (-0.03, 0.01), 2, False, 0.01)


def named(found: Findings, name: str) -> TechniqueResult:
    return next(technique for technique in found.techniques if technique.name == name)


def with_quality(found: Findings, quality: Quality, *names: str) -> Findings:
    techniques = [replace(each, quality=quality) if each.name in names else each for each in found.techniques]
    return replace(found, techniques=tuple(techniques))


def page_of(found: Findings, name: str = "toy", recommended: str | None = None) -> Node:
    return page_from(report_html(name, "id", found, recommended, 10.0).decode())


# Why each technique is recommended, or is not


def test_each_technique_has_an_explanation(golden: Golden) -> None:
    found = findings()
    golden("\n".join(f"{technique.name}: {explanation(technique, found)}" for technique in found.techniques))


def test_each_unusual_result_has_an_explanation_of_its_own(golden: Golden) -> None:
    found = findings()
    fix = replace(found.techniques[3], name="fix-data-1", overrides={"data.num_workers": 4, "data.cache": "none"})
    predicted = replace(named(found, "halves"), peak_memory_ratio=None, predicted_memory_ratio=0.5)
    failed = replace(found.techniques[-1], reason="it cannot be run: out of memory")
    wide: dict[str, Any] = {"speedup": 0.98, "speedup_interval": (0.65, 1.49), "builds": 4}
    noisy = replace(found.techniques[0], verdict="no gain", is_recommended=False, name="noisy", **wide)
    told = {
        "a fix": explanation(fix, found),
        "builds that differ": explanation(noisy, found),
        "less memory, as predicted": explanation(predicted, found),
        "failed": explanation(failed, found),
    }
    late = replace(found.beside[3], question="helps", speedup=None, seen="not measured", reason="no time")
    hurried = replace(found, beside=(*found.beside[:3], late))
    told["not tried beside others"] = explanation(named(found, "seldom-logged"), hurried)
    doubtful = with_quality(found, UNDECIDED, "seldom-logged")
    told["quality undecided"] = explanation(named(doubtful, "seldom-logged"), doubtful)
    unknown = with_quality(found, Quality("not measured", "val/accuracy"), "seldom-logged", "loader-2", "halves")
    told |= {
        f"quality not measured, {n}": explanation(named(unknown, n), unknown) for n in ("seldom-logged", "loader-2")
    }
    alone = replace(unknown, beside=())
    told["quality not measured, alone"] = explanation(named(alone, "seldom-logged"), alone)
    # where nothing is gained, the quality does not matter
    assert explanation(named(unknown, "halves"), unknown) == explanation(named(found, "halves"), found)
    golden("\n".join(f"{name}: {text}" for name, text in told.items()))


def test_techniques_that_do_not_help_are_grouped_by_the_reason() -> None:
    found = findings()
    groups = [["channels-last"], ["compile", "halves"], ["batch"], ["loader-2", "seldom-logged"]]
    assert [names for _, names in unhelpful(found)] == groups
    unknown = with_quality(found, Quality("not measured", "val/accuracy"), "seldom-logged", "loader-2")
    assert [names for _, names in unhelpful(unknown)] == groups
    assert unhelpful(unknown)[-1][0] != unhelpful(found)[-1][0]


@pytest.mark.parametrize(("interval", "is_open"), [((0.99, 1.02), False), ((0.17, 2.05), True), ((0.99, 1.3), True)])
def test_an_open_verdict_is_not_reported_as_no_difference(interval: tuple[float, float], is_open: bool) -> None:
    technique = replace(
        findings().techniques[0], name="wide", verdict="no gain", is_recommended=False, speedup_interval=interval
    )
    found = replace(findings(), techniques=(technique,), recommended={}, beside=())
    ((group, names),) = unhelpful(found)
    assert (names, technique.is_open, group != "no difference") == (["wide"], is_open, is_open)


OPEN: dict[str, Any] = {"verdict": "no gain", "speedup": 1.1, "is_recommended": False}
SCREENED: dict[str, Any] = {"builds": 0, "verdict": "no gain", "is_recommended": False}


@pytest.mark.parametrize(
    ("changes", "verdict", "speed", "is_decided"),
    [
        ({}, "gain", "2.74x (2.72-2.76)", True),
        (
            {"verdict": "no gain", "speedup": 1.1, "speedup_interval": (0.9, 1.3)},
            "undecided",
            "1.10x (0.90-1.30)",
            False,
        ),
        ({**SCREENED, "speedup": 1.3, "speedup_interval": (1.29, 1.31)}, "undecided", "~1.30x", False),
        (
            {"verdict": "no gain", "speedup": 1.1, "speedup_interval": (0.0, inf), "builds": 2},
            "undecided",
            "~1.10x",
            False,
        ),
        ({**SCREENED, "speedup": 1.0, "speedup_interval": (0.99, 1.01)}, "no gain", "~1.00x", True),
        ({"verdict": "not applicable", "speedup": None, "is_untried": True}, "not tried", "", False),
        ({"verdict": "not applicable", "speedup": None}, "not applicable", "", True),
        ({"verdict": "not applicable", "speedup": None, "reason": NOT_AMONG}, "not tried", "", True),
    ],
)
def test_what_was_not_decided_has_no_verdict_and_a_screening_no_interval(
    changes: dict[str, Any], verdict: str, speed: str, is_decided: bool
) -> None:
    technique = replace(findings().techniques[0], **changes)
    found = replace(findings(), techniques=(technique,), recommended={}, speedup=None, beside=())
    assert technique_cells(technique)[1:3] == (verdict, speed)
    assert technique_json(technique)["decided"] is is_decided
    assert findings_of(findings_json(found)).techniques[0].is_decided is is_decided
    (row,) = [row for row in page_of(found).all("tr") if row.attributes.get("data-technique") == "cache"]
    assert row.cells[1:3] == [verdict, speed]
    assert ("data-undecided" in row.attributes) is not is_decided
    shown = [row[2] for table in tables_of(found) for row in table[1] if row[0] == "cache"]
    assert shown == [speed] * bool(speed)


def test_nothing_helps_only_where_each_technique_is_decided() -> None:
    idle, wide = (replace(findings().techniques[3], name=name) for name in ("idle", "wide"))
    wide = replace(wide, speedup_interval=(0.5, 2.0))
    late = TechniqueResult("late", {}, "not applicable", "there was no time for it", is_untried=True)

    def told(*techniques: TechniqueResult) -> str:
        return without_gain(replace(findings(), techniques=techniques))

    assert told(idle) == "nothing was found to help"
    assert re.findall("wide|late|idle", told(idle, wide, late)) == ["wide", "late"]
    assert re.findall("late", told(idle, late)) == ["late"]
    left_out = TechniqueResult("left-out", {}, "not applicable", NOT_AMONG)
    assert told(idle, left_out) == "nothing was found to help"


# The answer


def test_the_answer_claims_no_more_than_was_shown(golden: Golden) -> None:
    unproven = with_quality(findings(), Quality("not measured", "val/accuracy"), "cache", "loader-2")
    unproven = with_quality(unproven, UNDECIDED, "seldom-logged")
    cases: dict[str, dict[str, Any]] = {
        "equivalent": {},
        "same": {"quality": Quality("same")},
        "not measured": {"quality": Quality("not measured", "val/loss")},
        "not inferior": {"quality": Quality("undecided", "val/loss", 0.1, (-0.01, 0.2), 3, True, 0.02)},
        "nothing helps": {"recommended": {}, "speedup": None},
        "unproven gains": {"recommended": {}, "speedup": None, "techniques": unproven.techniques},
    }
    told = []
    for name, changes in cases.items():
        found = replace(findings(), **changes)
        assert ("3.61" in headline(found)) == (found.speedup is not None)
        told.append(f"{name}: {headline(found)} {certainty(found)}")
    golden("\n".join(told))


def test_the_change_of_a_loss_has_the_sign_of_the_loss() -> None:
    better = Quality("better", "val/loss", 0.24, (0.2, 0.3), 5, True, 0.01, mode="min")
    assert re.findall(r"[+-]\d\.\d+", quality_text(better)) == ["-0.24", "-0.3", "-0.2"]
    shown = [tile.note for tile in tiles(replace(findings(), quality=better)) if tile.figure == "better"]
    assert re.findall(r"[+-]\d\.\d+", shown[0]) == ["-0.24"]


# The page


def test_the_page_has_the_answer_all_techniques_and_the_config() -> None:
    found = findings()
    page = page_of(found, recommended="# the recommended config\nname: toy")
    assert sections(page) == ["pictures", "techniques", "beside", "config", "notes"]
    assert page.one("body").attributes["data-kind"] == "tune-up"
    assert page.classes("headline")[0].attributes["data-value"] == "3.61"
    rows = page.one(id="techniques").all("tr", data_technique=None)
    assert [row.attributes["data-technique"] for row in rows] == [
        technique.name for technique in shown_techniques(found)
    ]
    for row, technique in zip(rows, shown_techniques(found), strict=True):
        assert row.attributes["data-verdict"] == technique.verdict
        assert ("data-recommended" in row.attributes) == technique.is_recommended
        assert (row.values[2], row.values[4]) == (technique.speedup, technique.memory_ratio)
        assert explanation(technique, found) in row.cells[5]
    assert "# the recommended config" in page.one(id="config").text
    assert [note.text for note in page.all(data_note="")] == list(found.notes)
    assert "data.micro_batch_size=null" in page.text


def test_the_page_has_what_was_measured_beside_others() -> None:
    *rows, together = page_of(findings()).one(id="beside").all("tr", data_technique=None)
    for row, each in zip(rows, findings().beside, strict=True):
        assert (row.attributes["data-question"], row.attributes["data-seen"]) == (each.question, each.seen)
        assert (row.attributes["data-beside"], row.values[-1]) == (" + ".join(each.others), each.speedup)
    assert (together.values[-1], len(together.all(data_state="gain"))) == (3.61, 1)


def test_what_was_not_measured_is_not_shown() -> None:
    found = findings()
    bare = replace(found, techniques=found.techniques[-1:], speedup=None, split={}, recommended_split={}, beside=())
    assert pictures_of(bare) == {}
    assert drawn_pictures(bare) == []
    assert "beside" not in sections(page_of(bare))
    assert page_of(bare).classes("chart") == []
    assert "get-artifact" not in note_of("toy", bare, "id")
    assert tables_of(Findings((), None, {})) == []


def test_names_that_are_markup_stay_text_everywhere() -> None:
    found = findings(HOSTILE)
    page = page_of(found, HOSTILE, f"# {HOSTILE}")
    assert page.text.count(HOSTILE) > 10
    assert "<script" not in note_of(HOSTILE, found)


# Pictures


def test_the_pictures_show_what_is_recommended_in_colors_of_their_own() -> None:
    pictures = pictures_of(findings())
    assert list(pictures) == drawn_pictures(findings()) == list(PICTURES)
    speed, memory = pictures[SPEEDS].axes
    names = [label.get_text() for label in speed.get_yticklabels()]
    colors = {name: to_hex(point.get_facecolor()[0]) for name, point in zip(names, speed.collections, strict=True)}
    assert names[:3] == ["all together", "cache", "batch"]
    plain = dict.fromkeys(["batch", "loader-2", "seldom-logged", "channels-last", "compile", "halves"], theme.QUIET)
    assert colors == {"all together": theme.BEST, "cache": theme.FRONT, "bf16": theme.FRONT, **plain}
    assert len(memory.collections) == sum(each.memory_ratio is not None for each in findings().techniques) + 1
    parts = [label.get_text() for label in pictures[SPLIT].axes[0].get_yticklabels()]
    assert parts == ["data", "forward", "backward"]  # the transfer takes nothing


def test_an_interval_without_ends_is_drawn_within_the_chart() -> None:
    found = findings()
    few = replace(found.techniques[0], speedup_interval=(0.0, inf))
    (speed, _) = pictures_of(replace(found, techniques=(few, *found.techniques[1:])))[SPEEDS].axes
    assert all(map(isfinite, speed.get_xlim()))


# The note in MLflow and the terminal


def test_the_note_has_the_table_and_leaves_room_for_it_beside_long_reasons() -> None:
    reason = "an exception says a lot\n" * 160
    broken = replace(
        findings().techniques[0], verdict="not applicable", reason=reason, is_recommended=False, speedup=None
    )
    others = [replace(broken, name=f"mine {number}") for number in range(4)]
    note = note_of(
        "digits", replace(findings(), techniques=(*findings().techniques, *others), notes=("the last note",))
    )
    assert len(note) < 8000
    assert "the last note" in note
    assert re.search(r"^\| cache \| gain \| 2\.74x \(2\.72-2\.76\) \| 1\.00x \|", note, re.MULTILINE)
    assert re.search(r"^\| mine 3 \| not applicable \|", note, re.MULTILINE)
    assert technique_json(broken)["reason"] == reason


def test_the_note_shows_the_pictures_that_are_drawn() -> None:
    found = findings()
    shown = re.findall(r"\]\(get-artifact\?path=([\w.]+)&run_uuid=id\)", note_of("toy", found, "id"))
    assert set(shown) == set(PICTURES)
    assert "get-artifact" not in note_of("toy", found)  # before MLflow has given it a run


def test_bars_of_text_show_speeds_and_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    speeds, split = tables_of(findings())
    assert speeds[1][0] == ("all together", "\u2588" * 28, "3.61x (3.50-3.70)")
    assert speeds[1][1][:2] == ("cache", "\u2588" * 21)
    assert split[1][0] == ("data", "\u2588" * 17, "62 %", "\u2588", "4 %")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert tables_of(findings())[0][1][0][1] == "#" * 28


def test_the_result_shows_itself_as_text_table_and_frame(tmp_path: Path, golden: Golden) -> None:
    found = replace(
        findings(),
        recommended={"data.cache": "memory"},
        techniques=(*findings().techniques[:5], *findings("<b>").techniques),
    )
    result = TuneupResult(tuneup_id="id", findings=found, **study_fields(toy_config(), tmp_path))
    rows = {row.cells[0]: row.cells for row in parsed(result._repr_html_()).all("tr") if row.cells}
    assert rows["cache"][:4] == ["cache", "gain", "2.74x (2.72-2.76)", "1.00x"]
    assert [rows[name][3] for name in ("bf16", "channels-last", "seldom-logged")] == ["0.61x", "~1.04x", "-"]
    assert "<b>cache" in rows
    assert result.df.loc[1, "speedup"] == 1.13
    assert result.recommended.data.cache == "memory"
    none = Findings((TechniqueResult("loader-1", {}, "not applicable", "there was no time for it"),), None, {})
    without = replace(result, findings=none)
    golden("\n".join([repr(result), repr(without), result.to_json()["summary"], without.to_json()["summary"]]))
