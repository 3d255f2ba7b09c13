"""What a tune-up tells of its findings: why each technique ended as it did, the answer, the pictures, bars of text."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from math import inf
from xml.etree import ElementTree

import pytest

from paceline.study.tuneup.answering import certainty, headline, tiles
from paceline.study.tuneup.bars import tables_of
from paceline.study.tuneup.explaining import explanation, shown_arms, unhelpful
from paceline.study.tuneup.outcome import Findings, Quality
from paceline.study.tuneup.pictures import PICTURES, SPLIT, TRADE, files_of
from paceline.study.tuneup.recording import note_of
from paceline.study.tuneup.reporting import report_html
from paceline.study.tuneup.texts import arm_cells, quality_text, without_gain

from .found import findings

HOSTILE = "<script>alert('x')</script>"
WHY = {
    "cache": "recommended",
    "loader-2": "faster alone, but cache sets the same and is recommended",
    "bf16": "recommended: alone it shows little, but 1.33 x (1.30-1.34) beside cache",
    "channels-last": "no difference that counts; 0.95 x (0.94-0.96) beside cache",
    "seldom-logged": "faster alone, but not needed any more: 1.00 x (0.99-1.01) beside cache + bf16",
    "compile": "slower; it breaks the graph",
    "halves": "slower, at 0.56 x the memory",
    "batch": "it makes the model worse: val/accuracy worse, -0.0400 (-0.0500 to -0.0300) over 5 seeds",
    "fp16": "not tried: it is for GPUs",
}


def test_each_technique_says_why_it_is_recommended_or_is_not() -> None:
    found = findings()
    assert {arm.name: explanation(arm, found) for arm in found.arms} == WHY


def test_a_fix_tells_what_it_sets_since_its_name_does_not() -> None:
    found = findings()
    fix = replace(found.arms[3], name="fix-data-1", overrides={"data.num_workers": 4, "data.cache": "none"})
    assert explanation(fix, found) == 'no difference that counts; it sets data.num_workers=4 data.cache="none"'


def test_the_change_of_a_loss_is_told_as_the_loss_goes() -> None:
    better = Quality("better", "val/loss", 0.24, (0.2, 0.3), 5, True, 0.01, mode="min")
    assert quality_text(better) == "val/loss better, -0.2400 (-0.3000 to -0.2000) over 5 seeds"
    assert ("quality", "better", "val/loss -0.2400, margin 0.01") in tiles(replace(findings(), quality=better))


def test_memory_that_was_predicted_is_told_apart_from_what_was_measured() -> None:
    found = findings()
    told = {cells[0]: cells[3] for cells in map(arm_cells, found.arms)}
    assert (told["bf16"], told["channels-last"], told["seldom-logged"]) == ("0.61 x", "~1.04 x", "-")
    saver = replace(found.arms[6], peak_memory_ratio=None, predicted_memory_ratio=0.5)
    assert explanation(saver, found) == "slower, at ~0.50 x the memory"


def test_what_was_tried_and_failed_is_not_called_untried() -> None:
    found = findings()
    failed = replace(found.arms[-1], reason="it cannot be run: out of memory")
    assert explanation(failed, found) == "it cannot be run: out of memory"


def test_a_gain_that_there_was_no_time_to_try_beside_others_says_so() -> None:
    found = findings()
    late = replace(
        found.beside[3], question="helps", speedup=None, verdict="not applicable", reason="there was no time"
    )
    found = replace(found, beside=(*found.beside[:3], late))
    logged = next(arm for arm in found.arms if arm.name == "seldom-logged")
    assert explanation(logged, found) == "faster alone; not tried beside cache + bf16: there was no time"


def test_a_gain_whose_quality_was_not_shown_says_that_and_not_how_fast_it_is() -> None:
    found = findings()
    undecided = Quality("undecided", "val/loss", -0.1, (-0.3, 0.1), 2, False, 0.02)
    arms = [replace(arm, quality=undecided) if arm.name == "seldom-logged" else arm for arm in found.arms]
    logged = next(arm for arm in arms if arm.name == "seldom-logged")
    told = explanation(logged, replace(found, arms=tuple(arms)))
    assert told.startswith("faster, but not shown to be as good: val/loss undecided, -0.1000")


def without_quality(found: Findings, *names: str) -> Findings:
    unknown = Quality("not measured", "val/accuracy")
    arms = [replace(each, quality=unknown) if each.name in names else each for each in found.arms]
    return replace(found, arms=tuple(arms))


def test_a_gain_whose_quality_was_never_measured_does_not_read_as_if_it_were_proven() -> None:
    found = without_quality(findings(), "seldom-logged", "loader-2", "channels-last", "halves")
    told = {arm.name: explanation(arm, found) for arm in found.arms}
    assert told["loader-2"] == "faster; quality not measured, but cache sets the same and is recommended"
    needed = ", but not needed any more: 1.00 x (0.99-1.01) beside cache + bf16"
    assert told["seldom-logged"] == f"faster; quality not measured{needed}"
    assert told["channels-last"] == WHY["channels-last"]  # where nothing is gained, the quality does not matter
    assert told["halves"] == WHY["halves"]
    alone = replace(found, beside=())
    logged = next(arm for arm in found.arms if arm.name == "seldom-logged")
    assert explanation(logged, alone) == "faster; quality not measured"
    assert dict(unhelpful(found))["faster; quality not measured"] == ["loader-2", "seldom-logged"]
    assert "faster alone, but left out" not in dict(unhelpful(found))
    row = next(line for line in note_of("toy", found).splitlines() if line.startswith("| seldom-logged"))
    assert row.startswith("| seldom-logged | gain |")
    assert "faster; quality not measured" in row
    html = report_html("toy", "id", found, None, 10.0)
    assert html.count("faster; quality not measured") == 2 + 1


def test_where_only_what_was_never_checked_is_faster_nobody_is_told_that_nothing_helps() -> None:
    found = without_quality(findings(), "cache", "loader-2")
    undecided = Quality("undecided", "val/accuracy", -0.01, (-0.03, 0.01), 2, False, 0.01)
    arms = [replace(each, quality=undecided) if each.name == "seldom-logged" else each for each in found.arms]
    found = replace(found, recommended={}, arms=tuple(replace(each, is_recommended=False) for each in arms))
    told = "; faster; quality not measured: cache, loader-2; faster, but not shown to be as good: seldom-logged"
    assert without_gain(found) == f"nothing is recommended{told}"
    assert headline(found) == f"Nothing is recommended{told}."


def test_the_answer_says_how_much_faster_and_within_which_margin() -> None:
    found = findings()
    assert headline(found) == "3.61 times as fast (3.50-3.70), val/accuracy equal within 0.01."
    assert "0.99-1.01 x" in certainty(found)
    assert "-0.0010 (-0.0040 to +0.0020) over 5 seeds; what counts as equal was set to 0.01" in certainty(found)
    assert dict(unhelpful(found)) == {
        "no difference": ["channels-last"],
        "slower": ["compile", "halves"],
        "a worse model": ["batch"],
        "faster alone, but left out": ["loader-2", "seldom-logged"],
    }


@pytest.mark.parametrize(
    ("quality", "words"),
    [
        (Quality("same"), "computing the same"),
        (Quality("not measured", "val/loss"), "quality not measured"),
        (Quality("undecided", "val/loss", 0.1, (-0.01, 0.2), 3, True, 0.02), "val/loss not worse within 0.02"),
    ],
)
def test_the_answer_claims_no_more_of_the_quality_than_was_shown(quality: Quality, words: str) -> None:
    assert headline(replace(findings(), quality=quality)) == f"3.61 times as fast (3.50-3.70), {words}."


def test_without_a_recommendation_the_answer_is_that() -> None:
    nothing = replace(findings(), recommended={}, speedup=None)
    assert headline(nothing) == "Nothing helps."
    assert headline(replace(findings(), speedup=None, speedup_interval=None)).startswith("Faster; by how much")


def _points(file: bytes) -> dict[str, str]:
    """The kind of each point, by the first line of what it says under the mouse."""
    circles = [each for each in ElementTree.fromstring(file).iter() if each.tag.endswith("circle")]
    return {(each[0].text or "").partition("\n")[0]: each.attrib["class"] for each in circles}


def test_the_pictures_are_files_of_their_own_that_load_nothing() -> None:
    files = files_of(findings())
    assert files.keys() == PICTURES.keys()
    for file in files.values():
        root = ElementTree.fromstring(file)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.attrib["width"]) > 300
        assert b"href" not in file
        assert b"url(" not in file
    assert _points(files[TRADE]) == {
        "cache: gain": "point front",
        "loader-2: gain": "point plain",
        "bf16: none": "point front",
        "channels-last: none": "point plain",
        "halves: harm": "point plain",
        "all together": "point best",
        "baseline: the config as it was": "point open",
    }
    split = ElementTree.fromstring(files[SPLIT])
    bars = [each.attrib["class"] for each in split.iter() if "bar" in each.attrib.get("class", "")]
    assert bars == ["bar", "bar b1"] * 3  # not of the transfer, which takes nothing


def test_what_was_not_measured_is_not_drawn() -> None:
    found = findings()
    bare = replace(found, arms=found.arms[-1:], speedup=None, split={}, recommended_split={}, beside=())
    assert files_of(bare) == {}
    html = report_html("toy", "id", bare, None, 0.0)
    assert "Beside others" not in html
    assert 'class="chart"' not in html


def test_an_interval_without_ends_is_drawn_within_the_chart() -> None:
    found = findings()
    few = replace(found.arms[0], speedup_interval=(0.0, inf))
    for file in files_of(replace(found, arms=(few, *found.arms[1:]))).values():
        drawn = file.split(b"</style>")[1]
        assert b'="inf"' not in drawn
        assert b'="nan"' not in drawn


def test_names_that_are_markup_stay_text_everywhere() -> None:
    found = findings(HOSTILE)
    html = report_html(HOSTILE, "id", found, f"# {HOSTILE}", 1.0)
    assert html.count("<script>") == 1  # its own
    for file in files_of(found).values():
        assert b"<script" not in file
        ElementTree.fromstring(file)
    assert "<script" not in note_of(HOSTILE, found)


def test_the_report_tells_the_whole_course() -> None:
    html = report_html("toy", "id", findings(), None, 10.0)
    beside = html.split('id="beside"')[1].split("</section>")[0]
    assert beside.count("<tr>") == 1 + 4 + 1
    assert "1.33 x (1.30-1.34)" in beside
    assert "there was no time for it" in beside
    assert "3.61 x (3.50-3.70)" in beside
    assert "data.micro_batch_size=null" in html
    unclear = replace(findings(), speedup=1.0, speedup_interval=(0.9, 1.1))
    shown = report_html("toy", "id", unclear, None, 10.0).split('id="beside"')[1].split("</section>")[0]
    assert (beside.count('good">gain'), shown.count('good">gain')) == (2, 1)


def test_bars_of_text_show_speeds_and_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    speeds, split = tables_of(findings())
    assert speeds[1][0] == ("all together", "\u2588" * 28, "3.61 x (3.50-3.70)")
    assert speeds[1][1][:2] == ("cache", "\u2588" * 21)
    assert split[0] == ("time of a step", "as it was", "", "recommended", "")
    assert split[1][0] == ("data", "\u2588" * 17, "62 %", "\u2588", "4 %")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert tables_of(findings())[0][1][0][1] == "#" * 28


def test_bars_are_left_out_where_nothing_was_measured() -> None:
    nothing = Findings((), (0.99, 1.01), {})
    assert tables_of(nothing) == []
    assert shown_arms(nothing) == []


@pytest.mark.parametrize(
    ("interval", "text", "group"),
    [
        ((0.99, 1.02), "no difference that counts", "no difference"),
        ((0.17, 2.05), "undecided in the time there was", "undecided in the time there was"),
        ((0.99, 1.3), "undecided in the time there was", "undecided in the time there was"),
    ],
)
def test_what_was_not_decided_is_not_told_as_no_difference(
    interval: tuple[float, float], text: str, group: str
) -> None:
    arm = replace(findings().arms[0], name="wide", verdict="none", is_recommended=False, speedup_interval=interval)
    found = replace(findings(), arms=(arm,), recommended={}, beside=())
    assert explanation(arm, found).startswith(text)
    assert unhelpful(found) == [(group, ["wide"])]
