"""What is reported about a technique at the end: its verdict, and all that was measured of it."""

from collections.abc import Collection
from dataclasses import replace

from paceline.tuneups.beside import NO_TIME
from paceline.tuneups.outcome import Quality, TechniqueResult, Verdict
from paceline.tuneups.peaks import Peaks
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.statistics.intervals import Interval
from paceline.tuneups.statistics.sequential_test import Comparison, SpeedVerdict
from paceline.tuneups.techniques import Technique
from paceline.tuneups.texts import UNMEASURED


def result_of(
    technique: Technique,
    pair: ScreenedPair | None,
    confirmed: Comparison | None,
    quality: Quality,
    usual_warnings: Collection[str],
    peaks: Peaks,
) -> TechniqueResult:
    """The result of a technique.

    Args:
        pair: its screening against the baseline; None when it was not tried.
        confirmed: its comparison with the baseline over builds; None when none were made for it.
        usual_warnings: the baseline's own.
    """
    plain = TechniqueResult(
        technique.name, technique.overrides, "not applicable", technique.why_not or NO_TIME, technique.family
    )
    if technique.why_not or pair is None or (not pair.pairs and not pair.problem):
        return plain
    if pair.problem:
        return replace(plain, reason=f"it cannot be run: {pair.problem}")
    interval = confirmed.interval if confirmed is not None else pair.interval
    warnings = tuple(each for each in pair.warnings if each not in usual_warnings)
    found = replace(
        plain,
        verdict=_verdict(confirmed.verdict if confirmed is not None else "no gain", quality),
        reason="; ".join([technique.why, *warnings]),
        warnings=warnings,
        build_seconds=pair.build_seconds,
        speedup=interval.estimate,
        speedup_interval=ends_of(interval),
        pairs=len(pair.pairs),
        in_turn=pair.in_turn,
        builds=confirmed.builds if confirmed is not None else 0,
        builds_needed=confirmed.builds_needed if confirmed is not None else None,
        peak_memory_ratio=peaks.ratio(technique.name),
        peak_memory_bytes=peaks.measured.get(technique.name),
        predicted_peak_memory_bytes=peaks.predicted.get(technique.name),
        predicted_memory_ratio=peaks.predicted_ratio(technique.name),
        quality=quality,
    )
    return replace(found, reason=f"{found.reason}; {UNMEASURED}") if found.gains_unmeasured else found


def ends_of(interval: Interval) -> tuple[float, float]:
    """Without the estimate."""
    return interval.low, interval.high


def _verdict(speed: SpeedVerdict, quality: Quality) -> Verdict:
    """Whatever makes the model worse is a regression, however fast it is."""
    return "regression" if quality.verdict == "worse" else speed
