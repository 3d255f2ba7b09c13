"""Findings of a scale study come back from their file."""

import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings
from paceline.batch_scaling.stored_findings import findings_json, findings_of
from support.batch_scaling.findings import GROWING, findings

NONE = CriticalBatch(inf, 400.0, inf, ((0, 400.0), (4_000, inf)), (150.0, inf))


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
