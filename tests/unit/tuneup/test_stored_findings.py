"""Findings of a tune-up come back from their file."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from paceline.tuneups.outcome import Findings, Quality
from paceline.tuneups.result import TuneupResult
from paceline.tuneups.stored_findings import findings_json, findings_of
from support.bench.study_fields import study_fields
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
    told = TuneupResult(tuneup_id="id", findings=found, **study_fields(toy_config(), tmp_path)).to_json()
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
