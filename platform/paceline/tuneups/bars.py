"""A tune-up's pictures as bars of text, for a terminal or a log."""

import sys

from paceline.tuneups.explanations import shown_techniques
from paceline.tuneups.outcome import Findings
from paceline.tuneups.pictures import TOGETHER
from paceline.tuneups.texts import LEAST_SHARE, speed_text, technique_speed

WIDTH = 28
"""Characters of the longest bar."""
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Heading and rows."""


def tables_of(findings: Findings) -> list[Table]:
    """Speeds, and where the time of a step goes; those for which nothing was measured are left out."""
    return [table for table in (_speeds(findings), _split(findings)) if table[1]]


def _speeds(findings: Findings) -> Table:
    values = [
        (technique.name, technique.speedup, technique_speed(technique))
        for technique in shown_techniques(findings)
        if technique.speedup is not None
    ]
    if findings.speedup is not None:
        values.insert(0, (TOGETHER, findings.speedup, speed_text(findings.speedup, findings.speedup_interval)))
    values = sorted(values, key=lambda each: -each[1])
    most = max((speed for _, speed, _ in values), default=1.0)
    rows: list[tuple[str, ...]] = [(name, _bar(speed / most), text) for name, speed, text in values]
    return ("speed", "", ""), rows


def _split(findings: Findings) -> Table:
    """The parts of a step, as it was and with what is recommended."""
    before, after = findings.split, findings.recommended_split
    parts = [part for part in {**before, **after} if max(before.get(part, 0.0), after.get(part, 0.0)) >= LEAST_SHARE]
    rows = []
    for part in parts if before else []:
        cells = [part, _bar(before.get(part, 0.0)), f"{100 * before.get(part, 0.0):.0f} %"]
        if after:
            cells += [_bar(after.get(part, 0.0)), f"{100 * after.get(part, 0.0):.0f} %"]
        rows.append(tuple(cells))
    return ("time of a step", "as it was", "", *(("recommended", "") if after else ())), rows


def _bar(share: float) -> str:
    return _block() * max(round(min(share, 1.0) * WIDTH), 1 if share > 0 else 0)


def _block() -> str:
    try:
        "\u2588".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "\u2588"
