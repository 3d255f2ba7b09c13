"""A tune-up's report can be written again from its folder, and `paceline report` finds it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as command
from paceline.errors import EnvironmentFault
from paceline.review.finding import find_run
from paceline.study.tuneup.folder import TuneupFolder, claim_tuneup
from paceline.study.tuneup.outcome import Findings, Quality
from paceline.study.tuneup.result import TuneupResult, findings_json
from paceline.study.tuneup.stored import findings_of, stored_report
from support.toys import toy_config

from .found import findings


def test_findings_come_back_from_their_file_as_they_were() -> None:
    found = findings()
    assert findings_of(json.loads(json.dumps(findings_json(found)))) == found
    nothing = Findings((), (0.99, 1.01), {})
    assert findings_of(json.loads(json.dumps(findings_json(nothing)))) == nothing


def no_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def test_what_is_no_number_is_written_as_null_and_comes_back(tmp_path: Path) -> None:
    known = findings()
    unsure = Quality("undecided", "val/loss", nan, (-inf, inf), 2, False, 0.02, "min")
    first = replace(known.arms[0], speedup_interval=(0.0, inf), quality=unsure, overrides={"optimizer.lr": [inf]})
    beside = replace(known.beside[0], speedup_interval=(0.0, inf))
    found = replace(known, arms=(first, *known.arms[1:]), noise=(0.0, inf), quality=unsure, beside=(beside,))
    told = TuneupResult("id", "toy", found, toy_config(), "", "", tmp_path, 1.0, None, None).to_json()
    plain = json.loads(json.dumps(told), parse_constant=no_number)
    assert plain["arms"][0]["quality"]["interval"] == [None, None]
    back = findings_of(plain)
    unsure = replace(unsure, difference=None)
    first = replace(first, quality=unsure, overrides={"optimizer.lr": [None]})
    assert back == replace(found, arms=(first, *known.arms[1:]), quality=unsure)


def test_findings_tell_no_secret() -> None:
    found, secret = findings(), "open-sesame-77"
    changes = {"data.args": {"api_key": secret}}
    arm = replace(found.arms[0], overrides=changes, reason=f"at https://user:{secret}@host/")
    told = json.dumps(findings_json(replace(found, arms=(arm,), recommended=changes)))
    assert secret not in told
    assert "api_key" in told


@pytest.fixture
def folder(tmp_path: Path) -> TuneupFolder:
    claimed = claim_tuneup(toy_config(), tmp_path / "runs")
    claimed.folder.findings.write_text(json.dumps(findings_json(findings())))
    claimed.folder.recommended.write_text("# the recommended one\nname: toy\n")
    claimed.folder.write(status="finished", wall_seconds=83.0)
    claimed.release()
    return claimed.folder


def test_the_report_command_writes_a_tune_ups_report_again(
    folder: TuneupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for named in ("toy", f"toy/{folder.run_id}", str(folder.path)):
        assert command(["report", named, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["kind"], told["report"]) == ("tune-up", str(folder.report))
        html = folder.report.read_text()
        assert "3.61 times as fast" in html
        assert "1 min 23 s" in html
        assert "# the recommended one" in html
        folder.report.unlink()


def test_what_takes_a_run_passes_tune_ups_over(folder: TuneupFolder, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "toy" / "20000101-000000-abcdef"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert find_run("toy", tmp_path / "runs").folder == run
    assert find_run("toy", tmp_path / "runs", tuneups=True).folder == folder.path  # the newer one
    with pytest.raises(EnvironmentFault, match="there is no run"):
        find_run(folder.path)


def test_a_tune_up_without_an_end_or_with_damaged_findings_says_so(folder: TuneupFolder) -> None:
    folder.findings.write_text('{"arms": [')
    with pytest.raises(EnvironmentFault, match=r"findings\.json is damaged"):
        stored_report(folder.path)
    folder.findings.write_text('{"arms": 3}')
    with pytest.raises(EnvironmentFault, match=r"findings\.json is damaged"):
        stored_report(folder.path)
    folder.findings.unlink()
    folder.write(status="failed")
    with pytest.raises(EnvironmentFault, match="is failed, with nothing found out: start it anew by"):
        stored_report(folder.path)
    folder.write(status="interrupted")
    with pytest.raises(
        EnvironmentFault, match="is interrupted, with nothing found out: wait for its end, or go on with it by"
    ):
        stored_report(folder.path)
