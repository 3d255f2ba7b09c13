"""Findings as lines: secrets are hidden, and errors and warnings are counted."""

from paceline.linting.display import lines
from paceline.linting.finding import Finding
from support.golden import Golden


def test_lines_hide_secrets_and_count(golden: Golden) -> None:
    secret = "ghp_" + "a1" * 18
    found = [Finding("rule", f"own.py:1 {secret}", "reason", "hint", "error")]
    found += [Finding("r", "p", "a", "c", "warning")] * 2
    shown = "\n".join(lines(found))
    assert secret not in shown
    golden(shown)
    golden("\n".join(lines([])), "none")
