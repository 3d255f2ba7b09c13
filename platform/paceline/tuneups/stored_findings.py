"""Findings of a tune-up as JSON, and its report made again from them."""

import json
from collections.abc import Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from paceline.errors import EnvironmentFault
from paceline.redaction import redact_tree
from paceline.tuneups.folder import TuneupFolder
from paceline.tuneups.outcome import Findings, TechniqueResult


def stored_report(path: Path) -> bytes:
    """Return the report of a tune-up that has ended, made again.

    Args:
        path: the tune-up's folder.

    Raises:
        EnvironmentFault: it has no findings, or they are damaged.
    """
    from paceline.tuneups.report_page import report_html

    folder = TuneupFolder(path)
    about = folder.read()
    if not folder.findings.exists():
        state = about.get("status", "unknown")
        hint = "start it again by" if state == "failed" else "wait for its end, or resume it by"
        reason = f"the tune-up in {path} is {state}, with nothing found out: {hint} `paceline tuneup`"
        raise EnvironmentFault(reason, "no-findings", path=path, status=state)
    try:
        findings = findings_of(json.loads(folder.findings.read_bytes()))
    except (ValueError, RecursionError):
        reason = f"{folder.findings} is damaged: put it back from a copy"
        raise EnvironmentFault(reason, "file-damaged", path=folder.findings) from None
    recommended = folder.recommended.read_text() if folder.recommended.exists() else None
    return report_html(path.parent.name, path.name, findings, recommended, float(about.get("wall_seconds", 0.0)))


def findings_of(content: Mapping[str, Any]) -> Findings:
    """Read the JSON values of `findings_json`.

    Raises:
        ValueError: they are something else.
    """
    findings: Findings = _adapter(Findings).validate_python(content)
    return findings


def findings_json(findings: Findings) -> dict[str, Any]:
    """Return the findings as JSON values without secrets; null stands for an infinite end of an interval, and for all
    that is not finite."""
    return dict(redact_tree(_finite(_adapter(Findings).dump_python(findings, mode="json", by_alias=True))))


def technique_json(technique: TechniqueResult) -> dict[str, Any]:
    """Return one technique as JSON values, as they are part of the findings."""
    return dict(_adapter(TechniqueResult).dump_python(technique, mode="json", by_alias=True))


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _finite(value: Any) -> Any:
    """Put null in place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
