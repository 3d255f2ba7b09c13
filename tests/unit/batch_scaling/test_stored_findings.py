"""Findings of a scale study come back from their file, and commands find its folder."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings
from paceline.batch_scaling.folder import STUDIES, ScaleFolder
from paceline.batch_scaling.stored_findings import findings_json, findings_of, stored_report
from paceline.bench.study_launch import claim_study
from paceline.cli import run as command
from paceline.errors import EnvironmentFault
from support.batch_scaling.findings import GROWING, findings
from support.refusals import refused
from support.reports.page import page_from
from support.toys import toy_config

NONE = CriticalBatch(inf, 400.0, inf, ((0, 400.0), (4_000, inf)))


def bare() -> ScaleFindings:
    """Findings where nothing but the config as it is could be trained."""
    found = replace(findings(), critical=None, branches=(), noise=(), table=(), verifications=(), step_time=None)
    return replace(found, fastest=None, cheapest=None, knee=None, recommended={}, speedup=None, speedup_interval=None)


def no_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize(
    "found",
    [
        findings(),
        bare(),
        replace(findings(), critical=NONE, recommended=GROWING),
        replace(findings(), noise=(NoisePoint(100, inf, 20.0, None),)),
    ],
    ids=["some", "none", "infinite", "infinite noise"],
)
def test_findings_come_back_from_their_file_as_they_were(found: ScaleFindings) -> None:
    assert findings_of(json.loads(json.dumps(findings_json(found)), parse_constant=no_number)) == found


def test_findings_hold_no_secret() -> None:
    secret = "open-sesame-77"
    found = replace(findings(), notes=(f"at https://user:{secret}@host/",), undecided=f"password={secret}")
    assert secret not in json.dumps(findings_json(found))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScaleFolder:
    monkeypatch.chdir(tmp_path)
    claimed = claim_study(STUDIES, toy_config(), tmp_path / "runs")
    claimed.folder.findings.write_text(json.dumps(findings_json(findings())))
    claimed.folder.recommended.write_text("# the recommended one\nname: toy\n")
    claimed.folder.write(status="finished", wall_seconds=83.0)
    claimed.release()
    return claimed.folder


def test_the_report_command_writes_the_report_again(folder: ScaleFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("toy", f"toy/{folder.run_id}", str(folder.path)):
        assert command(["report", name, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["kind"], told["report"]) == ("scale", str(folder.report))
    page = page_from(folder.report.read_text())
    assert page.classes("headline")[0].attributes["data-value"] == "2.2"
    assert "1 min 23 s" in page.one("header").text
    assert "# the recommended one" in page.one(id="config").text


@pytest.mark.parametrize(("written", "shown"), [("finished", "finished"), ("running", "interrupted")])
def test_the_list_has_it_with_its_status(
    folder: ScaleFolder, capsys: pytest.CaptureFixture[str], written: str, shown: str
) -> None:
    folder.write(status=written)  # nobody holds its lock
    assert command(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["name"], listed["kind"], listed["id"], listed["status"]) == ("toy", "scale", folder.run_id, shown)


@pytest.mark.parametrize("name", ["toy", "toy/{id}", "{path}"])
def test_commands_for_trainings_say_what_it_is(
    folder: ScaleFolder, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    named = name.format(id=folder.run_id, path=folder.path)
    for asked in (["compare", named, "other"], ["evaluate", named], ["export", named]):
        assert command(asked) == 3
        told = capsys.readouterr().err
        assert "[no-run]" in told
        assert f"paceline report toy/{folder.run_id}" in told


@pytest.mark.parametrize("content", ['{"table": [', '{"table": 3}', "[]"])
def test_damaged_findings_are_named(folder: ScaleFolder, content: str) -> None:
    folder.findings.write_text(content)
    refusal = refused(EnvironmentFault, stored_report, folder.path)
    assert (refusal.code, refusal.fields) == ("file-damaged", {"path": folder.findings})


def test_a_study_without_findings_says_how_to_get_them(folder: ScaleFolder) -> None:
    folder.findings.unlink()
    folder.write(status="interrupted")
    refusal = refused(EnvironmentFault, stored_report, folder.path)
    assert (refusal.code, refusal.fields["status"]) == ("no-findings", "interrupted")
