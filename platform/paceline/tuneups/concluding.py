"""What is reported about a technique at the end: its verdict, and all that was measured of it."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from paceline.tuneups.beside import NO_TIME
from paceline.tuneups.outcome import Quality, TechniqueResult, Verdict
from paceline.tuneups.peaks import Peaks
from paceline.tuneups.ring import Contest
from paceline.tuneups.techniques import Technique
from paceline.tuneups.texts import UNMEASURED


def result_of(
    technique: Technique, contest: Contest | None, quality: Quality, usual_warnings: Collection[str], peaks: Peaks
) -> TechniqueResult:
    """The result of a technique.

    Args:
        contest: its own against the baseline; None when it was not tried.
        usual_warnings: what the baseline tells, too.
    """
    plain = TechniqueResult(
        technique.name, technique.overrides, "not applicable", technique.why_not or NO_TIME, technique.family
    )
    if technique.why_not or contest is None or (not contest.standing.pairs and not contest.problem):
        return plain
    if contest.problem:
        return replace(plain, reason=f"it cannot be run: {contest.problem}")
    interval = contest.standing.interval
    warnings = tuple(each for each in contest.warnings if each not in usual_warnings)
    found = replace(
        plain,
        verdict=_verdict(contest.standing.final, quality),
        reason="; ".join([technique.why, *warnings]),
        warnings=warnings,
        build_seconds=contest.build_seconds,
        speedup=interval.estimate,
        speedup_interval=(interval.low, interval.high),
        pairs=len(contest.standing.pairs),
        peak_memory_ratio=peaks.ratio(technique.name),
        peak_memory_bytes=peaks.measured.get(technique.name),
        predicted_peak_memory_bytes=peaks.predicted.get(technique.name),
        predicted_memory_ratio=peaks.predicted_ratio(technique.name),
        quality=quality,
    )
    return replace(found, reason=f"{found.reason}; {UNMEASURED}") if found.gains_unmeasured else found


def _verdict(speed: Any, quality: Quality) -> Verdict:
    """Whatever makes the model worse is a regression, however fast it is."""
    return "regression" if quality.verdict == "worse" else speed
