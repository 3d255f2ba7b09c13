"""Explanations in one sentence: the reason why each technique is recommended or not."""

from textwrap import shorten

from paceline.reports.text import counted
from paceline.tuneups.outcome import Beside, Findings, TechniqueResult
from paceline.tuneups.statistics.sequential_test import LOOKS
from paceline.tuneups.techniques import FIX
from paceline.tuneups.texts import (
    NO_DIFFERENCE,
    NOT_CONFIRMED,
    UNDECIDED,
    UNLIKELY,
    UNMEASURED,
    UNSEEN,
    UNSHOWN,
    memory_text,
    overrides_text,
    quality_text,
    speed_text,
    technique_cells,
)

REASON_WIDTH = 200
"""Most characters of a reason in a table."""


def explanation(technique: TechniqueResult, findings: Findings) -> str:
    """Return the reason why a technique is recommended or not, and the warnings raised while it was built."""
    sets = [f"it sets {overrides_text(technique.overrides)}"] if technique.name.startswith(FIX) else []
    return "; ".join([_came_of(technique, findings), *sets, *technique.warnings])


def _came_of(technique: TechniqueResult, findings: Findings) -> str:
    if technique.verdict == "not applicable":
        # an exception may be long; `findings.json` has its whole text
        return shorten(technique.reason, REASON_WIDTH, placeholder=" ...")
    if technique.is_recommended:
        return _recommended(technique, findings)
    if technique.quality.verdict == "worse":
        return f"it makes the model worse: {quality_text(technique.quality)}"
    met = _met(technique, findings)
    if technique.verdict == "regression":
        saves = technique.memory_ratio is not None and technique.memory_ratio < 0.95
        return f"slower, at {memory_text(technique)} the memory" if saves else f"slower{_and_beside(met)}"
    if technique.verdict == "no gain":
        return f"{_without_verdict(technique)}{_and_beside(met)}"
    return _gains_alone(technique, findings, met)


def _without_verdict(technique: TechniqueResult) -> str:
    """Return the reason for a verdict of neither gain nor regression."""
    if technique.is_unconfirmed:
        return NOT_CONFIRMED
    if technique.is_given_up:
        return f"{UNLIKELY} after {counted(technique.builds, 'build')}"
    if not technique.is_open:
        return NO_DIFFERENCE if technique.builds else UNSEEN
    if needed := technique.builds_needed:
        return f"{UNDECIDED} after {technique.builds} builds; some {needed} in all would do"
    if technique.builds < LOOKS[0]:
        return UNDECIDED
    return f"undecided after {technique.builds} builds, which differ too much"


def shown_techniques(findings: Findings) -> list[TechniqueResult]:
    """Return the techniques in reading order: recommended ones, those compared over enough builds by speed, likewise
    those with too few builds for any verdict, and the rest."""
    return sorted(
        findings.techniques,
        key=lambda technique: (
            not technique.is_recommended,
            technique.speedup is None,
            technique.builds < LOOKS[0],
            -(technique.speedup or 0.0),
        ),
    )


def rows_of(findings: Findings) -> list[tuple[str, ...]]:
    """Return a row for each technique, under `texts.HEADING`."""
    return [(*technique_cells(technique), explanation(technique, findings)) for technique in shown_techniques(findings)]


def unhelpful(findings: Findings) -> list[tuple[str, list[str]]]:
    """Return the names of the techniques that were tried and are not recommended, grouped by result."""
    left = [technique for technique in findings.techniques if not technique.is_recommended]
    worse = [technique.name for technique in left if technique.quality.verdict == "worse"]
    rest = [technique for technique in left if technique.name not in worse]
    groups = {
        "no difference": [
            technique.name for technique in rest if technique.verdict == "no gain" and technique.is_decided
        ],
        UNDECIDED: [technique.name for technique in rest if technique.is_open and not technique.is_unconfirmed],
        NOT_CONFIRMED: [technique.name for technique in rest if technique.is_unconfirmed],
        "slower": [technique.name for technique in rest if technique.verdict == "regression"],
        "a worse model": worse,
        UNMEASURED: [technique.name for technique in rest if technique.gains_unmeasured],
        "faster alone, but left out": [
            technique.name for technique in rest if technique.verdict == "gain" and not technique.gains_unmeasured
        ],
    }
    return [(what, names) for what, names in groups.items() if names]


def beside_text(beside: Beside) -> str:
    """Return a text such as `~1.33x beside cache-memory + batch-x8`: it was seen in one build."""
    where = f"beside {' + '.join(beside.others)}" if beside.others else ""
    if beside.question == "instead":
        where = f"in place of the other of its kind {where}".rstrip()
    if beside.speedup is None:
        return f"not tried {where}: {beside.reason}"
    return f"~{speed_text(beside.speedup, None)} {where}"


def _recommended(technique: TechniqueResult, findings: Findings) -> str:
    met = [each for each in findings.beside if each.name == technique.name and each.seen == "faster"]
    if technique.share is not None:
        return f"recommended: {speed_text(technique.share, technique.share_interval)} beside the others"
    return f"recommended: {beside_text(met[-1])}" if met else "recommended"


def _gains_alone(technique: TechniqueResult, findings: Findings, met: Beside | None) -> str:
    if technique.quality.difference is not None and not technique.quality.is_fine:
        return f"{UNSHOWN}: {quality_text(technique.quality)}"
    return f"{UNMEASURED if technique.gains_unmeasured else 'faster alone'}{_but(technique, findings, met)}"


def _but(technique: TechniqueResult, findings: Findings, met: Beside | None) -> str:
    """Return the reason why a gain is not among the recommended techniques."""
    if met is not None and met.question == "needed" and met.seen != "faster":
        return f", but not needed any more: {beside_text(met)}"
    rival = next(
        (each for each in findings.techniques if each.is_recommended and each.family == technique.family), None
    )
    if rival is not None and technique.family:
        return f", but {rival.name} sets the same and is recommended"
    if met is not None:
        return f"; {beside_text(met)}"
    return "" if technique.gains_unmeasured else ", but it does not go with what is recommended"


def _met(technique: TechniqueResult, findings: Findings) -> Beside | None:
    """Return the latest result of the technique beside others; None if it was not tried."""
    return next((each for each in reversed(findings.beside) if each.name == technique.name), None)


def _and_beside(met: Beside | None) -> str:
    return f"; {beside_text(met)}" if met is not None and met.speedup is not None else ""
