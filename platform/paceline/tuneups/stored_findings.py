"""Findings of a tune-up as JSON, and its report made again from them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from paceline.bench.findings_file import json_values, read_findings
from paceline.tuneups.folder import TUNEUP, TuneupFolder
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
    findings = read_findings(folder, TUNEUP, findings_of)
    return report_html(path.parent.name, path.name, findings, folder.recommended_text(), folder.wall_seconds())


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
    content = _adapter(Findings).dump_python(findings, mode="json", by_alias=True)
    for stored, technique in zip(content["techniques"], findings.techniques, strict=True):
        stored["decided"] = technique.is_decided
    return json_values(content)


def technique_json(technique: TechniqueResult) -> dict[str, Any]:
    """Return one technique as JSON values, as they are part of the findings, and whether it is decided."""
    content = _adapter(TechniqueResult).dump_python(technique, mode="json", by_alias=True)
    return {**content, "decided": technique.is_decided}


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
