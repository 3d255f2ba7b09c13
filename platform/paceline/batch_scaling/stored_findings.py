"""Findings of a study as JSON, and its report written again from them."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.folder import SCALE, ScaleFolder
from paceline.bench.findings_file import json_values, read_findings


def findings_json(findings: ScaleFindings) -> dict[str, Any]:
    """Return the findings as `paceline scale --json` prints them, without secrets; null stands for numbers that are not
    finite, such as a critical batch size larger than any that was tried."""
    critical, last = findings.critical, findings.noise[-1] if findings.noise else None
    content = {
        **asdict(findings),
        "target": {findings.target.name: findings.target.value},
        "target_mode": findings.target.mode,
        "critical_batch_size": None if critical is None else critical.size,
        "critical_batch_size_range": None if critical is None else [critical.low, critical.high],
        "critical_batch_size_interval": None if critical is None else critical.interval,
        "critical_batch_size_by_samples": [] if critical is None else critical.by_samples,
        "noise_scale": None if last is None else last.value,
        "noise_scale_by_samples": [asdict(each) for each in findings.noise],
        "lr_rule": findings.rules.by_size[0][1],
        "lr_rule_holds_to": findings.rules.holds_to,
        "lr_rule_by_batch_size": findings.rules.by_size,
        "verifications": [{**asdict(each), "seconds": each.seconds} for each in findings.verifications],
    }
    return json_values({key: value for key, value in content.items() if key not in ("critical", "noise", "rules")})


def findings_of(content: Mapping[str, Any]) -> ScaleFindings:
    """Read the JSON values of `findings_json`.

    Raises:
        ValueError: they are something else.
    """
    try:
        ((name, value),) = content["target"].items()
        tree = {
            **content,
            "target": {"name": name, "value": value, "mode": content["target_mode"]},
            "critical": _critical(content),
            "noise": [{**each, "value": _number(each["value"])} for each in content["noise_scale_by_samples"]],
            "rules": {"by_size": content["lr_rule_by_batch_size"]},
            "branches": [{**each, "loss": _number(each["loss"])} for each in content["branches"]],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("these values are not the findings of a scale study") from error
    return _adapter().validate_python(tree)


def stored_report(path: Path) -> bytes:
    """Return the report of a study that has ended, written again.

    Args:
        path: the study's folder.

    Raises:
        EnvironmentFault: it has no findings, or they are damaged.
    """
    from paceline.batch_scaling.report_page import report_html

    folder = ScaleFolder(path)
    findings = read_findings(folder, SCALE, findings_of)
    return report_html(path.parent.name, path.name, findings, folder.recommended_text(), folder.wall_seconds())


def _critical(content: Mapping[str, Any]) -> dict[str, Any] | None:
    if content["critical_batch_size_range"] is None:
        return None
    low, high = map(_number, content["critical_batch_size_range"])
    by_samples = [(samples, _number(size)) for samples, size in content["critical_batch_size_by_samples"]]
    interval = content["critical_batch_size_interval"]
    return {
        "size": _number(content["critical_batch_size"]),
        "low": low,
        "high": high,
        "by_samples": by_samples,
        "interval": interval if interval is None else [*map(_number, interval)],
    }


def _number(value: float | None) -> float:
    return inf if value is None else value


@cache
def _adapter() -> TypeAdapter[ScaleFindings]:
    return TypeAdapter(ScaleFindings)
