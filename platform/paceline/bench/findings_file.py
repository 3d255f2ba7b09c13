"""Findings of a study as a file: JSON without secrets, and read again for its report."""

import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeVar

from paceline.bench.jobs import StudyKind
from paceline.bench.study_folder import StudyFolder
from paceline.errors import EnvironmentFault
from paceline.redaction import redact_tree

T = TypeVar("T")


def json_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values as JSON takes them, without secrets; null stands for all that is not finite."""
    return dict(redact_tree(_finite(content)))


def read_findings(folder: StudyFolder, study: StudyKind, parse: Callable[[Any], T]) -> T:
    """Return the findings of a study that has ended.

    Args:
        parse: of the JSON values; raises a ValueError where they are something else.

    Raises:
        EnvironmentFault: it has no findings, or they are damaged.
    """
    if not folder.findings.exists():
        state = folder.read().get("status", "unknown")
        hint = "start it again by" if state == "failed" else "wait for its end, or resume it by"
        reason = f"the {study.noun} in {folder.path} is {state}, with nothing found out: {hint} `{study.command}`"
        raise EnvironmentFault(reason, "no-findings", path=folder.path, status=state)
    try:
        return parse(json.loads(folder.findings.read_bytes()))
    except (ValueError, RecursionError):
        reason = f"{folder.findings} is damaged: put it back from a copy"
        raise EnvironmentFault(reason, "file-damaged", path=folder.findings) from None


def _finite(value: Any) -> Any:
    """Put null in place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
