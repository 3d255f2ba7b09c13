"""A tune-up's findings out of its folder, and its report written again from them."""

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from paceline.errors import EnvironmentFault
from paceline.tuneups.folder import TuneupFolder
from paceline.tuneups.outcome import Beside, Findings, Quality, TechniqueResult


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
    except (ValueError, TypeError, KeyError, AttributeError):
        reason = f"{folder.findings} is damaged: put it back from a copy"
        raise EnvironmentFault(reason, "file-damaged", path=folder.findings) from None
    recommended = folder.recommended.read_text() if folder.recommended.exists() else None
    return report_html(path.parent.name, path.name, findings, recommended, float(about.get("wall_seconds", 0.0)))


def findings_of(told: Mapping[str, Any]) -> Findings:
    """Read the plain values of `findings_json`.

    Raises:
        KeyError, TypeError, ValueError: they are something else.
    """
    return Findings(
        techniques=tuple(_technique(each) for each in told["techniques"]),
        noise=told["noise"],
        recommended=dict(told["recommended"]),
        speedup=told["speedup"],
        speedup_interval=_pair(told["speedup_interval"]),
        builds=told.get("builds", 0),
        quality=_quality(told["quality"]),
        peak_memory_ratio=told["peak_memory_ratio"],
        split=dict(told["split"]),
        recommended_split=dict(told.get("recommended_split", {})),
        bottleneck=told["bottleneck"],
        beside=tuple(_beside(each) for each in told.get("beside", [])),
        notes=tuple(told["notes"]),
    )


def _technique(told: Mapping[str, Any]) -> TechniqueResult:
    return TechniqueResult(
        name=told["name"],
        overrides=dict(told["overrides"]),
        verdict=told["verdict"],
        reason=told["reason"],
        family=told.get("family", ""),
        speedup=told["speedup"],
        speedup_interval=_pair(told["speedup_interval"]),
        pairs=told["pairs"],
        builds=told.get("builds", 0),
        builds_needed=told.get("builds_needed"),
        in_turn=told.get("in_turn", False),
        share=told.get("share"),
        share_interval=_pair(told.get("share_interval")),
        peak_memory_ratio=told["peak_memory_ratio"],
        peak_memory_bytes=told.get("peak_memory_bytes"),
        predicted_peak_memory_bytes=told.get("predicted_peak_memory_bytes"),
        predicted_memory_ratio=told.get("predicted_memory_ratio"),
        quality=_quality(told["quality"]),
        is_recommended=told["recommended"],
        warnings=tuple(told.get("warnings", ())),
        build_seconds=told.get("build_seconds"),
    )


def _quality(told: Mapping[str, Any]) -> Quality:
    return Quality(
        verdict=told["verdict"],
        metric=told["metric"],
        difference=told.get("difference"),
        interval=_pair(told.get("interval")),
        seeds=told.get("seeds", 0),
        is_not_inferior=told.get("not_inferior", False),
        margin=told.get("margin"),
        is_margin_relative=told.get("margin_is_relative", False),
        seeds_needed=told.get("seeds_needed"),
        mode=told.get("mode", "max"),
    )


def _beside(told: Mapping[str, Any]) -> Beside:
    return Beside(
        name=told["name"],
        others=tuple(told["others"]),
        question=told["question"],
        seen=told["seen"],
        speedup=told["speedup"],
        speedup_interval=_pair(told["speedup_interval"]),
        pairs=told["pairs"],
        reason=told["reason"],
    )


def _pair(told: Any) -> tuple[float, float] | None:
    return None if told is None else _ends(told)


def _ends(told: Any) -> tuple[float, float]:
    """Return the ends of an interval; null stands for an infinite one."""
    low, high = told
    return -inf if low is None else float(low), inf if high is None else float(high)
