"""Findings come back from their file, and the report of a tune-up is written again from its folder."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.study_launch import claim_study
from paceline.cli import run as command
from paceline.errors import EnvironmentFault
from paceline.runs.finding import find_run
from paceline.tuneups.folder import TUNEUPS, TuneupFolder
from paceline.tuneups.outcome import Findings, Quality
from paceline.tuneups.result import TuneupResult
from paceline.tuneups.stored_findings import findings_json, findings_of, stored_report
from support.golden import Golden
from support.reports.page import page_from
from support.toys import toy_config
from support.tuneup.findings import findings


@pytest.mark.parametrize("found", [findings(), Findings((), None, {})], ids=["some", "none"])
def test_findings_come_back_from_their_file_as_they_were(found: Findings) -> None:
    assert findings_of(json.loads(json.dumps(findings_json(found)))) == found


def no_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    known = findings()
    unsure = Quality("undecided", "val/loss", nan, (-inf, inf), 2, False, 0.02, mode="min")
    first = replace(known.techniques[0], speedup_interval=(0.0, inf), quality=unsure, overrides={"optimizer.lr": [inf]})
    beside = replace(known.beside[0], speedup_interval=(0.0, inf))
    found = replace(known, techniques=(first, *known.techniques[1:]), noise=None, quality=unsure, beside=(beside,))
    told = TuneupResult("id", "toy", found, toy_config(), "", "", tmp_path, 1.0, None, None).to_json()
    plain = json.loads(json.dumps(told), parse_constant=no_number)
    assert plain["techniques"][0]["quality"]["interval"] == [None, None]
    unsure = replace(unsure, difference=None)
    first = replace(first, quality=unsure, overrides={"optimizer.lr": [None]})
    assert findings_of(plain) == replace(found, techniques=(first, *known.techniques[1:]), quality=unsure)


def test_findings_hold_no_secret() -> None:
    found, secret = findings(), "open-sesame-77"
    changes = {"data.args": {"api_key": secret}}
    technique = replace(found.techniques[0], overrides=changes, reason=f"at https://user:{secret}@host/")
    told = json.dumps(findings_json(replace(found, techniques=(technique,), recommended=changes)))
    assert secret not in told
    assert "api_key" in told


@pytest.fixture
def folder(tmp_path: Path) -> TuneupFolder:
    claimed = claim_study(TUNEUPS, toy_config(), tmp_path / "runs")
    claimed.folder.findings.write_text(json.dumps(findings_json(findings())))
    claimed.folder.recommended.write_text("# the recommended one\nname: toy\n")
    claimed.folder.write(status="finished", wall_seconds=83.0)
    claimed.release()
    return claimed.folder


def test_the_report_command_writes_a_tune_ups_report_again(
    folder: TuneupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("toy", f"toy/{folder.run_id}", str(folder.path)):
        assert command(["report", name, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["kind"], told["report"]) == ("tune-up", str(folder.report))
    page = page_from(folder.report.read_text())
    assert page.classes("headline")[0].attributes["data-value"] == "3.61"
    assert "1 min 23 s" in page.one("header").text
    assert "# the recommended one" in page.one(id="config").text


def test_a_name_means_the_newest_run_and_not_a_tune_up(folder: TuneupFolder, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "toy" / "20000101-000000-abcdef"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert find_run("toy", tmp_path / "runs").folder == run
    assert find_run("toy", tmp_path / "runs", studies=True).folder == folder.path  # the newer one
    with pytest.raises(EnvironmentFault) as caught:
        find_run(folder.path)
    assert caught.value.code == "no-run"


@pytest.mark.parametrize("content", ['{"techniques": [', '{"techniques": 3}'])
def test_damaged_findings_are_named(folder: TuneupFolder, content: str) -> None:
    folder.findings.write_text(content)
    with pytest.raises(EnvironmentFault) as caught:
        stored_report(folder.path)
    assert (caught.value.code, caught.value.fields) == ("file-damaged", {"path": folder.findings})


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_tune_up_without_findings_says_how_to_get_them(folder: TuneupFolder, status: str, golden: Golden) -> None:
    folder.findings.unlink()
    folder.write(status=status)
    with pytest.raises(EnvironmentFault) as caught:
        stored_report(folder.path)
    assert (caught.value.code, caught.value.fields["status"]) == ("no-findings", status)
    golden(str(caught.value).replace(folder.run_id, "<id>"))
