"""Findings as lines for the user."""

from collections.abc import Sequence

from paceline.linting.finding import Finding
from paceline.redaction import redact

NOTHING = "no faults found"


def lines(findings: Sequence[Finding]) -> list[str]:
    """Two lines for each finding, and how many there are; secrets are hidden."""
    found = [line for finding in findings for line in _lines_of(finding)]
    return [redact(line) for line in (*found, _summary(findings))]


def _lines_of(finding: Finding) -> tuple[str, str]:
    return f"{finding.severity}: {finding.place}: {finding.reason} [{finding.rule}]", f"    hint: {finding.hint}"


def _summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return NOTHING
    errors = sum(finding.severity == "error" for finding in findings)
    counts = [(errors, "error"), (len(findings) - errors, "warning")]
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
