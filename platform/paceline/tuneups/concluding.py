"""What is reported about a technique at the end: its verdict, and all that was measured of it."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from paceline.tuneups.arms import Arm
from paceline.tuneups.beside import NO_TIME
from paceline.tuneups.outcome import ArmResult, Quality, Verdict
from paceline.tuneups.peaks import Peaks
from paceline.tuneups.ring import Contest
from paceline.tuneups.texts import UNMEASURED


def result_of(
    arm: Arm, contest: Contest | None, quality: Quality, usual_warnings: Collection[str], peaks: Peaks
) -> ArmResult:
    """The result of a technique.

    Args:
        contest: its own against the baseline; None when it was not tried.
        usual_warnings: what the baseline tells, too.
    """
    plain = ArmResult(arm.name, arm.overrides, "not applicable", arm.why_not or NO_TIME, arm.family)
    if arm.why_not or contest is None or (not contest.standing.pairs and not contest.problem):
        return plain
    if contest.problem:
        return replace(plain, reason=f"it cannot be run: {contest.problem}")
    interval = contest.standing.interval
    warnings = tuple(each for each in contest.warnings if each not in usual_warnings)
    found = replace(
        plain,
        verdict=_verdict(contest.standing.final, quality),
        reason="; ".join([arm.why, *warnings]),
        warnings=warnings,
        build_seconds=contest.build_seconds,
        speedup=interval.estimate,
        speedup_interval=(interval.low, interval.high),
        pairs=len(contest.standing.pairs),
        peak_memory_ratio=peaks.ratio(arm.name),
        peak_memory_bytes=peaks.measured.get(arm.name),
        predicted_peak_memory_bytes=peaks.predicted.get(arm.name),
        predicted_memory_ratio=peaks.predicted_ratio(arm.name),
        quality=quality,
    )
    return replace(found, reason=f"{found.reason}; {UNMEASURED}") if found.gains_unmeasured else found


def _verdict(speed: Any, quality: Quality) -> Verdict:
    """Whatever makes the model worse does harm, however fast it is."""
    return "harm" if quality.verdict == "worse" else speed
