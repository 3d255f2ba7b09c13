"""Tune-ups and scale studies in their folders: commands find them, and their reports are written again."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.batch_scaling import stored_findings as scale_findings
from paceline.batch_scaling.folder import STUDIES
from paceline.bench.study_launch import claim_study
from paceline.cli import run as command
from paceline.errors import EnvironmentFault
from paceline.runs.finding import find_run
from paceline.tuneups import stored_findings as tuneup_findings
from paceline.tuneups.folder import TUNEUPS
from support.batch_scaling.findings import findings as found_by_scale
from support.golden import Golden
from support.refusals import refused
from support.reports.page import page_from
from support.toys import toy_config
from support.tuneup.findings import findings as found_by_tuneup


class StudyKind(NamedTuple):
    """A kind of study, and what is found by one."""

    name: str
    lock: Any
    findings: Mapping[str, Any]
    stored_report: Callable[[Path], Any]
    value: str
    """In the headline of its report."""
    damaged: str
    """Findings whose table is none."""


KINDS = [
    StudyKind(
        "tune-up",
        TUNEUPS,
        tuneup_findings.findings_json(found_by_tuneup()),
        tuneup_findings.stored_report,
        "3.61",
        '{"techniques": 3}',
    ),
    StudyKind(
        "scale",
        STUDIES,
        scale_findings.findings_json(found_by_scale()),
        scale_findings.stored_report,
        "2.2",
        '{"table": 3}',
    ),
]


@pytest.fixture(params=KINDS, ids=[each.name for each in KINDS])
def kind(request: pytest.FixtureRequest) -> StudyKind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def folder(kind: StudyKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    claimed = claim_study(kind.lock, toy_config(), tmp_path / "runs")
    claimed.folder.findings.write_text(json.dumps(kind.findings))
    claimed.folder.recommended.write_text("# the recommended one\nname: toy\n")
    claimed.folder.write(status="finished", wall_seconds=83.0)
    claimed.release()
    return claimed.folder


def test_the_report_command_writes_the_report_again(
    kind: StudyKind, folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (f"toy/{folder.run_id}", str(folder.path)):
        assert find_run(name, studies=True).folder == folder.path
    assert command(["report", "toy", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["report"]) == (kind.name, str(folder.report))
    page = page_from(folder.report.read_text())
    assert page.classes("headline")[0].attributes["data-value"] == kind.value
    assert "1 min 23 s" in page.one("header").text
    assert "# the recommended one" in page.one(id="config").text


def test_a_name_means_the_newest_run_and_not_a_study(folder: Any) -> None:
    run = folder.path.with_name("20000101-000000-abcdef")
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert find_run("toy").folder == run
    assert find_run("toy", studies=True).folder == folder.path  # the newer one


@pytest.mark.parametrize(("written", "shown"), [("finished", "finished"), ("running", "interrupted")])
def test_the_list_has_it_with_its_status(
    kind: StudyKind, folder: Any, capsys: pytest.CaptureFixture[str], written: str, shown: str
) -> None:
    folder.write(status=written)  # nobody holds its lock
    assert command(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    values = {"name": "toy", "kind": kind.name, "id": folder.run_id, "status": shown}
    assert values.items() <= listed.items()


@pytest.mark.parametrize("name", ["toy", "toy/{id}", "{path}"])
def test_commands_for_trainings_say_what_it_is(folder: Any, capsys: pytest.CaptureFixture[str], name: str) -> None:
    named = name.format(id=folder.run_id, path=folder.path)
    for asked in (["compare", named, "other"], ["evaluate", named], ["export", named]):
        assert command(asked) == 3
        told = capsys.readouterr().err
        assert "[no-run]" in told
        assert f"paceline report toy/{folder.run_id}" in told


@pytest.mark.parametrize("content", ["{damaged}", '{"table": [', "[]"])
def test_damaged_findings_are_named(kind: StudyKind, folder: Any, content: str) -> None:
    folder.findings.write_text(content.replace("{damaged}", kind.damaged))
    refusal = refused(EnvironmentFault, kind.stored_report, folder.path)
    assert (refusal.code, refusal.fields) == ("file-damaged", {"path": folder.findings})


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_study_without_findings_says_how_to_get_them(
    kind: StudyKind, folder: Any, status: str, golden: Golden
) -> None:
    folder.findings.unlink()
    folder.write(status=status)
    refusal = refused(EnvironmentFault, kind.stored_report, folder.path)
    assert (refusal.code, refusal.fields["status"]) == ("no-findings", status)
    golden(str(refusal).replace(folder.run_id, "<id>"))
