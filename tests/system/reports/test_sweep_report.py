"""The report of a sweep: the best setting, the ranking, what did not finish, cost, comparable speeds."""

import json
from calendar import timegm
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.runs.finding import FoundRun
from paceline.runs.report.report import report_of
from paceline.runs.report.speed_comparison import compare_speeds
from paceline.sweeps.results.curves import places_of
from paceline.sweeps.results.pictures import CURVES, HEATMAP, IMPORTANCE, PARETO, PICTURES, SHARES
from paceline.tracking.costs import COST_FILE, SWEEP_PARTS, Ledger
from paceline.tracking.journal import Journal
from support.golden import Golden
from support.reports.folders import MLFLOW_ID, config, made_sweep, page_of, some_trials, stamped, trial
from support.reports.page import Node, sections

LEDGER = Ledger(
    "core",
    100.0,
    dict.fromkeys(SWEEP_PARTS, 0.0) | {"finished": 80.0, "pruned": 20.0},
    price_per_hour=36.0,
    kinds=SWEEP_PARTS,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FoundRun:
    """A finished sweep of 12 trials."""
    return made_sweep(tmp_path_factory.mktemp("runs"), some_trials())


@pytest.fixture(scope="module")
def page(found: FoundRun) -> Node:
    return page_of(found)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a page whose charts are not looked at: drawing them takes most of its time."""
    monkeypatch.setattr("paceline.runs.report.sweep_charts.drawn_chart", lambda draw, title: None)


def test_the_answer_comes_first(page: Node, golden: Golden) -> None:
    answer = page.classes("answer")[0]
    assert answer.classes("headline")[0].attributes["data-trials"] == "0004 0005"
    compared = answer.one(data_others=None).attributes
    assert (compared["data-others"], compared["data-next"]) == ("4", "0006 0007")
    assert page.one("main").text.startswith(answer.text)
    assert sections(page) == ["ranking", "pictures", "best", "unfinished", "cost", "speeds", "origin"]
    golden(answer.text)


def test_the_ranking_has_every_setting_with_links_to_its_trials(page: Node) -> None:
    rows = page.one(id="ranking").all("tr", data_setting=None)
    settings = [row.attributes["data-setting"] for row in rows]
    assert settings[0] == "0004 0005"
    assert sorted(" ".join(settings).split()) == [each.id for each in some_trials()]
    best = rows[0].values
    assert best[:3] == [1, 0.2, 32]
    assert best[3] == pytest.approx(0.8685)
    assert rows[0].cells[3] == "0.8685 ± 0.00071"
    states = {node.attributes["data-trial"]: node.attributes["data-state"] for node in page.all(data_trial=None)}
    assert states == {each.id: each.state for each in some_trials()}
    address = f"http://mlflow.example:5000/#/experiments/4/runs/{MLFLOW_ID}"
    assert any(node.attributes["href"].partition("?")[0] == address for node in rows[0].all("a"))


def test_it_shows_why_trials_did_not_finish(page: Node) -> None:
    reasons = {node.attributes["data-trials"]: node for node in page.one(id="unfinished").all("li")}
    assert {trials: node.attributes["data-state"] for trials, node in reasons.items()} == {
        "0010": "pruned",
        "0011": "oom",
    }
    assert "CUDA out of memory" in reasons["0011"].text
    assert "asha: 0.3 is not among the best third" in reasons["0010"].text


def test_it_shows_how_to_train_the_best_and_how_it_differs_from_the_sweeps_config(page: Node, found: FoundRun) -> None:
    best = page.one(id="best")
    assert best.classes("command")[0].text == f"paceline train {found.folder / 'best.yaml'}"
    assert "name: compare-best" in best.text
    changes = {row.attributes["data-key"]: row.cells[1:] for row in best.all("tr", data_key=None)}
    expected = {"data.global_batch_size": ["64", "32"], "optimizer.lr": ["0.1", "0.2"], "seed": ["0", "1"]}
    assert {key: changes.get(key) for key in expected} == expected
    assert "model.name" not in changes


def test_there_is_a_picture_of_each_kind(page: Node, found: FoundRun) -> None:
    drawn = page.all("svg", role="img")
    assert [node.attributes["aria-label"] for node in drawn] == [PICTURES[name] for name in (CURVES, PARETO, HEATMAP)]
    assert {"train/loss", "val/accuracy"} <= {node.text for node in drawn[0].all("text")}
    # a band for each setting that is named, since it has two seeds
    assert len(drawn[0].all(fill_opacity="0.18")) == 2 * 5
    assert report_of(found) == report_of(found)


def test_recorded_shares_are_drawn_rather_than_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(recorded: str) -> list[str]:
        page = page_of(made_sweep(tmp_path / str(len(recorded)), some_trials(), artifacts={SHARES: recorded}))
        images = page.all("svg", aria_label=PICTURES[IMPORTANCE])
        return [node.text for image in images for node in image.all("text") if "%" in node.text]

    computed: list[object] = []
    monkeypatch.setattr("paceline.sweeps.results.pictures.importances", lambda *given: computed.append(given) or {})
    assert {"62 %", "38 %"} <= set(drawn('{"optimizer.lr": 0.62, "data.global_batch_size": 0.38}'))
    assert not computed
    assert [drawn(damaged) for damaged in ("", "no JSON", "[1]", '{"optimizer.lr": null}')] == [[]] * 4
    assert len(computed) == 4


def test_the_front_has_the_numbers_of_the_ranking(tmp_path: Path) -> None:
    trials = [trial(n, 0.9 - n / 10, **{"optimizer.lr": 0.1 + n}) for n in range(4)]
    trials[2] = trial(2, 0.1, **trials[2].params)  # dominated by 3
    own = config(sweep={"space": {"optimizer.lr": [0.1, 1.1, 2.1, 3.1]}, "metric": "val/accuracy"})
    page = page_of(made_sweep(tmp_path, trials, own=own))
    assert places_of(trials, [("val/accuracy", "max")]) == {"0000": 1, "0001": 2, "0003": 3, "0002": 4}
    texts = [node.text for node in page.one("svg", aria_label=PICTURES[PARETO]).all("text")]
    assert [text for text in texts if text in ("1", "2", "3", "4")] == ["1", "2", "3"]
    assert [text.split() for text in texts if "lr=" in text] == [["1", "lr=0.1"], ["2", "lr=1.1"], ["3", "lr=3.1"]]


# Sweeps of other sizes


@pytest.mark.usefixtures("without_charts")
def test_a_sweep_in_which_nothing_has_finished_has_no_best(tmp_path: Path, golden: Golden) -> None:
    where = {"optimizer.lr": 0.1, "data.global_batch_size": 32}
    page = page_of(made_sweep(tmp_path, [trial(0, 0.4, "running", **where)], written="running"))
    assert "data-trials" not in page.classes("headline")[0].attributes
    assert "best" not in sections(page)
    golden(page.classes("answer")[0].text)


def test_a_sweep_without_trials_or_with_one(tmp_path: Path) -> None:
    page = page_of(made_sweep(tmp_path, []))
    assert page.all("tr", data_setting=None) == page.one(id="pictures").all("svg") == []
    own = config(sweep={"space": {"optimizer.lr": [0.1, 0.2]}, "metric": "val/accuracy"})
    page = page_of(made_sweep(tmp_path, [trial(0, 0.7, **{"optimizer.lr": 0.1})], own=own))
    assert page.classes("headline")[0].attributes["data-trials"] == "0000"
    assert page.all(data_others=None) == []
    headings = [node.text for node in page.one(id="ranking").all("th")]
    assert len(set(headings)) == len(headings)


def test_a_trial_has_a_report_of_its_own(found: FoundRun) -> None:
    page = page_of(FoundRun("trial", found.folder / "trials" / "0003"))
    assert page.one("body").attributes["data-kind"] == "trial"
    assert page.classes("headline")[0].attributes["data-step"] == "100"
    assert page.one("tr", data_metric="val/accuracy")


# Cost


def costs(page: Node) -> dict[tuple[str, str], list[float | None]]:
    """By part and unit: seconds, share and price."""
    rows = page.one(id="cost").all("tr", data_part=None)
    return {(row.attributes["data-part"], row.attributes["data-unit"]): row.values for row in rows}


@pytest.mark.usefixtures("without_charts")
def test_a_resumed_sweep_has_one_duration_from_its_first_launch_to_its_end(tmp_path: Path) -> None:
    made = made_sweep(tmp_path, some_trials()[:2], status=None)
    folder = made.folder.with_name("20261122-083159-b76094")
    made.folder.rename(folder)
    first = timegm((2026, 11, 22, 8, 31, 59))
    file = folder / "tracking" / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "start_time_ms": (first + 90) * 1000}))
    journal = Journal(folder / "tracking" / "journal.jsonl")
    for words, seconds in (("KILLED", 47), ("RUNNING", 90), ("FINISHED", 137)):
        journal.append([("status", {"status": words, "time_ms": (first + seconds) * 1000})])
    journal.close()
    page = page_of(FoundRun("sweep", folder))
    (tile,) = [node for node in page.classes("tile") if "wall time" in node.text]
    for node in (tile, page.one("header")):
        text = node.text.replace("\u202f", " ")
        assert "2 min 17 s" in text
        assert "43 s of it between its launches" in text


@pytest.mark.usefixtures("without_charts")
def test_the_ledger_is_shown(tmp_path: Path, page: Node) -> None:
    assert costs(page) == {}
    killed = made_sweep(tmp_path, some_trials()[:2], written="running", status=None)
    (killed.folder / "tracking" / COST_FILE).write_text(json.dumps(LEDGER.to_json()))
    shown = costs(page_of(killed))
    assert shown["finished", "core"] == [None, 80.0, None, 0.8, pytest.approx(0.8)]
    assert shown["all", "core"] == [None, 100.0, None, 1.0, pytest.approx(1.0)]


@pytest.mark.usefixtures("without_charts")
def test_a_newer_ledger_counts_and_includes_other_devices(tmp_path: Path) -> None:
    cores = Ledger("core", 50.0, {**dict.fromkeys(SWEEP_PARTS, 0.0), "pruned": 50.0}, kinds=SWEEP_PARTS)
    found = made_sweep(tmp_path, some_trials()[:2], artifacts={COST_FILE: json.dumps(cores.to_json())})
    assert costs(page_of(found))["pruned", "core"][1] == 50.0
    (found.folder / "tracking" / COST_FILE).write_text(json.dumps(replace(LEDGER, unit="GPU").after(cores).to_json()))
    page = page_of(found)
    assert costs(page)["finished", "GPU"][1] == 80.0
    assert "50 core-seconds" in page.one(id="cost").text


@pytest.mark.usefixtures("without_charts")
def test_a_damaged_ledger_is_left_out(tmp_path: Path) -> None:
    damaged = json.dumps({**LEDGER.to_json(), "price_per_hour": "x"})
    found = made_sweep(tmp_path, some_trials()[:2], artifacts={COST_FILE: damaged})
    (found.tracking / COST_FILE).write_text(damaged)
    assert costs(page_of(found)) == {}


# Speeds that can be compared


def comparison(page: Node) -> tuple[str, ...]:
    """Trials whose speeds can be compared with that of the best one, others and unknown ones."""
    found = page.one(id="speeds").all(data_alike=None)
    return tuple(found[0].attributes[f"data-{key}"] for key in ("alike", "others", "unknown")) if found else ()


def busy_sweep(tmp_path: Path, changes: Mapping[str, Mapping[str, Any]]) -> Node:
    """The report of a sweep whose trials ran under other conditions."""
    found = made_sweep(tmp_path, some_trials(), trial_options={"later": stamped()})
    for name, own in changes.items():
        journal = Journal(found.folder / "trials" / name / "tracking" / "journal.jsonl")
        journal.append([("tags", {"tags": stamped(**own)})])
        journal.close()
    return page_of(found)


@pytest.mark.usefixtures("without_charts")
def test_where_speeds_can_be_compared_there_is_no_caveat(tmp_path: Path, page: Node) -> None:
    assert comparison(page) == ()  # nothing is known
    alike = busy_sweep(tmp_path, {})
    assert comparison(alike) == ("9", "9", "0")
    assert alike.classes("caveat") == page.classes("caveat") == []


def test_speeds_that_cannot_be_compared_have_a_caveat_wherever_they_are_shown(tmp_path: Path, golden: Golden) -> None:
    page = busy_sweep(tmp_path, {"0005": {"other_load_start": 0.7}, "0001": {"other_load_start": 0.18}})
    assert comparison(page) == ("0", "9", "0")
    reasons = page.one(id="speeds").all("li", data_trials=None)
    assert [node.attributes["data-trials"] for node in reasons] == ["0005 0001"]
    caveats = [node.text for node in page.classes("caveat")]
    assert len(caveats) == 2  # under the table, and under the Pareto front
    assert "18 to 70%" in caveats[0]
    assert [node.attributes["href"] for node in page.all("a")].count("#speeds") == 3  # and in the navigation
    golden("\n".join(node.text for node in [page.classes("caveat")[0], *reasons, *page.one(id="ranking").all("th")]))


def test_equal_reasons_are_one_line_with_the_range_of_their_numbers() -> None:
    tags = {
        "0": stamped(other_load_start=0.7, other_load_end=0.66),
        "1": stamped(other_load_start=0.55, other_load_end=0.55),
        "2": stamped(other_load_end=0.18, measured_steps=4),
        "3": stamped(device="{H100}", measured_steps=6),
    }
    found = {each.text: each.trials for each in compare_speeds(tags, "0").reasons}
    assert list(found.values()) == [["0", "1", "2"], ["2", "3"], ["3"]]
    assert [part in reason for part, reason in zip(("18 to 70%", "4 to 6", "(H100)"), found, strict=True)] == [True] * 3


def test_a_comparison_counts_trials() -> None:
    found = compare_speeds({"0": stamped(), "1": stamped(), "2": stamped(torch="3"), "3": {}}, "0")
    assert (found.alike, found.others, found.unknown, found.is_known) == (1, 2, 1, True)
    assert found.doubt
    unknown = compare_speeds({"0": {}, "1": stamped()}, "0")
    assert (unknown.is_known, unknown.doubt) == (False, "")


@pytest.mark.usefixtures("without_charts")
def test_infeasible_settings_are_shown_and_are_not_the_best(tmp_path: Path) -> None:
    broken = [
        replace(each, violations={"val/loss < 1": 0.1 if each.id in ("0004", "0005") else -0.1})
        for each in some_trials()
    ]
    page = page_of(made_sweep(tmp_path, broken))
    answer = page.classes("answer")[0]
    assert answer.classes("headline")[0].attributes["data-trials"] == "0006 0007"
    assert answer.one(data_infeasible=None).attributes["data-infeasible"] == "1"
    rows = {row.attributes["data-setting"]: row for row in page.one(id="ranking").all("tr", data_setting=None)}
    assert (rows["0004 0005"].cells[0], rows["0006 0007"].cells[0]) == ("", "1")
    assert any("no: val/loss" in cell for cell in rows["0004 0005"].cells)


@pytest.mark.usefixtures("without_charts")
def test_a_report_without_a_feasible_setting_says_so(tmp_path: Path) -> None:
    broken = [replace(each, violations={"val/loss < 1": 0.1}) for each in some_trials()]
    page = page_of(made_sweep(tmp_path, broken))
    headline = page.classes("answer")[0].classes("headline")[0]
    assert headline.attributes["data-infeasible"] == "5"
    assert "best" not in sections(page)
