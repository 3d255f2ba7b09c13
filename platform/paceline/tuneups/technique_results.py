"""Results of techniques: the verdict of each, and what was seen of it beside others."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from paceline.tuneups.outcome import Beside, Quality, Question, TechniqueResult, Verdict
from paceline.tuneups.peaks import Peaks
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.statistics.intervals import Interval
from paceline.tuneups.statistics.sequential_test import Comparison, SpeedVerdict
from paceline.tuneups.techniques import Technique
from paceline.tuneups.texts import UNMEASURED

NO_TIME = "there was no time for it"


def result_of(
    technique: Technique,
    pair: ScreenedPair | None,
    confirmed: Comparison | None,
    quality: Quality,
    usual_warnings: Collection[str],
    peaks: Peaks,
    build_problem: str = "",
) -> TechniqueResult:
    """The result of a technique.

    Args:
        pair: its screening against the baseline; None when it was not tried.
        confirmed: its comparison with the baseline over builds; None when none were made for it.
        usual_warnings: the baseline's own.
        build_problem: reason why it could not be measured in fresh processes; empty if it could.
    """
    plain = TechniqueResult(
        technique.name, technique.overrides, "not applicable", technique.why_not or NO_TIME, technique.family
    )
    if technique.why_not:
        return plain
    if pair is None or (not pair.pairs and not pair.problem):
        return replace(plain, is_untried=True)
    if pair.is_too_slow:
        return replace(plain, reason=pair.problem, is_untried=True)
    if pair.problem:
        return replace(plain, reason=f"it cannot be run: {pair.problem}")
    if build_problem:
        return replace(plain, reason=f"it cannot be run in fresh processes: {build_problem}")
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
        is_given_up=confirmed is not None and confirmed.is_given_up,
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


def beside_of(name: str, others: Sequence[str], question: Question, pair: ScreenedPair) -> Beside:
    """The result of a pair in which a technique was added to others.

    Args:
        pair: of the others alone against the others with it.
    """
    if pair.problem or not pair.pairs:
        reason = f"it cannot be run: {pair.problem}" if pair.problem else NO_TIME
        return Beside(name, tuple(others), question, "not measured", reason=reason)
    interval = pair.interval
    return Beside(
        name,
        tuple(others),
        question,
        pair.seen,
        interval.estimate,
        (interval.low, interval.high),
        len(pair.pairs),
    )
