"""Texts for a tune-up's figures, the same wherever they are shown."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from paceline.config.overrides import override_texts
from paceline.config.tuneup import NOT_AMONG, SKIPPED
from paceline.reports.text import counted
from paceline.tuneups.outcome import Findings, Quality, TechniqueResult

UNDECIDED = "undecided in the time there was"
"""Text for a speed whose interval is too wide for a verdict."""
NOT_CONFIRMED = "measured in the screening alone, not confirmed"
"""Text for a technique that may have differed in its one build, and that no further builds were made for."""
NO_DIFFERENCE = "no difference that counts"
UNSEEN = "no difference in the screening, which is one build"
UNLIKELY = "a difference that counts is unlikely"
"""Text for a technique that was measured no further."""
UNMEASURED = "faster; quality not measured"
"""Text for a gain that changes the numerics, if no trainings were compared."""
UNSHOWN = "faster, but not shown to be as good"
"""Text for a gain that changes the numerics, if the compared trainings did not decide its quality."""
OPEN = ("undecided", "not tried")
"""Words in place of the verdict of a technique that there was too little time for."""
VAGUE = 10.0
"""An interval whose upper end exceeds its estimate by this factor is not shown: it is from two or three builds."""
LEAST_SHARE = 0.005
"""A part that takes less than this share of a step is not shown."""


def speed_text(speedup: float | None, interval: tuple[float, float] | None) -> str:
    """Return a text such as `2.13x (2.02-2.25)`."""
    if speedup is None:
        return "not measured"
    value, _, ends = interval_text(speedup, interval).partition(" ")
    return f"{value}x {ends}".rstrip()


def interval_text(value: float, interval: tuple[float, float] | None) -> str:
    """Return a text such as `2.13 (2.02-2.25)`; without the interval if it is too wide."""
    if interval is None or _is_vague(value, interval):
        return f"{value:.2f}"
    return f"{value:.2f} ({interval[0]:.2f}-{interval[1]:.2f})"


def _is_vague(value: float, interval: tuple[float, float] | None) -> bool:
    return interval is None or interval[1] > VAGUE * value


def noise_text(noise: float | None) -> str:
    """Return a text such as `1.2 % between builds of the same config`."""
    return "not measured" if noise is None else f"{100 * noise:.1f} % between builds of the same config"


def ratio_text(ratio: float | None) -> str:
    """Return a text such as `0.63x`; a dash if it was not measured."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def memory_text(technique: TechniqueResult) -> str:
    """Return a text such as `0.63x` if it was measured, `~0.63x` if it was predicted; a dash if neither."""
    return f"{'~' if technique.is_memory_predicted else ''}{ratio_text(technique.memory_ratio)}"


def measured_text(technique: TechniqueResult) -> str:
    """Return a text such as `6 builds`, `6 builds, in turn`, or `6 pairs, 1 build` if it was only screened."""
    in_turn = ", in turn" if technique.in_turn else ""
    if technique.builds:
        return f"{counted(technique.builds, 'build')}{in_turn}"
    return f"{technique.pairs} pairs, 1 build{in_turn}" if technique.pairs else ""


def quality_text(quality: Quality) -> str:
    """Return a text such as `val/accuracy equivalent, -0.001 (-0.0032 to +0.0012) over 5 seeds`."""
    if quality.verdict == "same":
        return "computes the same"
    if quality.change is None:
        return quality.verdict
    change, low, high = quality.change
    if not isfinite(change):
        return f"{quality.metric} {quality.verdict}, diverged"
    verdict = "not worse" if quality.verdict == "undecided" and quality.is_not_inferior else quality.verdict
    needed = f"; needs {quality.seeds_needed} seeds to decide" if quality.seeds_needed else ""
    ends = f"({low:+.3g} to {high:+.3g})"
    return f"{quality.metric} {verdict}, {change:+.3g} {ends} over {quality.seeds} seeds{needed}"


def margin_text(quality: Quality) -> str:
    """Return a text such as `0.0095, relative to the baseline`, or `0.01`."""
    return f"{quality.margin:.3g}{', relative to the baseline' if quality.is_margin_relative else ''}"


def overrides_text(overrides: Mapping[str, Any]) -> str:
    """Return overrides as the command line takes them, such as `data.cache="memory" data.num_workers=0`."""
    return " ".join(override_texts(overrides))


def answer_text(findings: Findings) -> str:
    """Return the recommendation in one line, as overrides for the command line, with speed and quality."""
    if not findings.recommended:
        return without_gain(findings)
    changes = overrides_text(findings.recommended)
    return f"{changes}: {speed_text(findings.speedup, findings.speedup_interval)}, {quality_text(findings.quality)}"


def summary_text(name: str, findings: Findings) -> str:
    """Return the result in one line, for a pull request or a commit."""
    if not findings.recommended or findings.speedup is None:
        return f"{name}: {without_gain(findings)}"
    speed = f"{speed_text(findings.speedup, findings.speedup_interval)} over {findings.builds} builds"
    memory = f", {ratio_text(findings.peak_memory_ratio)} memory" if findings.peak_memory_ratio is not None else ""
    return f"{name}: {speed}, {quality_text(findings.quality)}{memory}: {overrides_text(findings.recommended)}"


def verdict_text(technique: TechniqueResult) -> str:
    """Return the verdict; `undecided` or `not tried` where there was too little time, or where it was left out."""
    if technique.is_untried or technique.reason in (SKIPPED, NOT_AMONG):
        return "not tried"
    return technique.verdict if technique.is_decided else "undecided"


def technique_speed(technique: TechniqueResult) -> str:
    """Return a text such as `1.20x (1.06-1.37)` if it was compared over builds, `~1.20x` with too few builds for an
    interval, since one from a single build holds for that build alone. Empty if it was not measured."""
    if technique.speedup is None:
        return ""
    interval = technique.speedup_interval if technique.builds else None
    sign = "~" if _is_vague(technique.speedup, interval) else ""
    return f"{sign}{speed_text(technique.speedup, interval)}"


def technique_cells(technique: TechniqueResult) -> tuple[str, str, str, str]:
    """Return the name, verdict, speed and memory: a row of the table without its last cell, the explanation."""
    memory = "" if technique.speedup is None else memory_text(technique)
    return technique.name, verdict_text(technique), technique_speed(technique), memory


HEADING = ("technique", "verdict", "speed", "memory", "why")


def split_texts(split: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return each part of a step with its share, such as `62 %`, without parts that take hardly any time."""
    return [(part, f"{100 * share:.0f} %") for part, share in split.items() if share >= LEAST_SHARE]


def without_gain(found: Findings) -> str:
    """Return the result if nothing is recommended, with the techniques that are not decided."""
    doubtful: dict[str, list[str]] = {}
    for technique in found.techniques:
        if technique.verdict == "gain" and not technique.quality.is_fine:
            what = UNMEASURED if technique.gains_unmeasured else UNSHOWN
            doubtful.setdefault(what, []).append(technique.name)
    if doubtful:
        told = [f"{what}: {', '.join(names)}" for what, names in doubtful.items()]
        return "; ".join(["nothing is recommended", *told])
    if all(technique.verdict == "not applicable" for technique in found.techniques):
        return "nothing was measured; give tuneup.budget_seconds more if there was no time for it"
    asked = [each for each in found.techniques if each.reason not in (SKIPPED, NOT_AMONG)]
    words = [(word, [each.name for each in asked if verdict_text(each) == word]) for word in OPEN]
    if left := [f"{word}: {', '.join(names)}" for word, names in words if names]:
        return "; ".join(["nothing is recommended", *left])
    return "nothing was found to help"
