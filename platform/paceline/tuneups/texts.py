"""Texts for a tune-up's figures, the same wherever they are shown."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from paceline.config.overrides import override_texts
from paceline.tuneups.outcome import Findings, Quality, TechniqueResult

UNDECIDED = "undecided in the time there was"
"""Text for a speed whose interval is too wide for a verdict."""
NOT_CONFIRMED = "a difference in the screening, not confirmed"
"""Text for a technique that differed in one build, and that no further builds were made for."""
UNMEASURED = "faster; quality not measured"
"""Text for a gain that changes the numerics, if no trainings were compared."""
UNSHOWN = "faster, but not shown to be as good"
"""Text for a gain that changes the numerics, if the compared trainings did not decide its quality."""
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
    return (
        f"{value:.2f}"
        if interval is None or interval[1] > VAGUE * value
        else f"{value:.2f} ({interval[0]:.2f}-{interval[1]:.2f})"
    )


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
        return f"{technique.builds} builds{in_turn}"
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


def technique_cells(technique: TechniqueResult) -> tuple[str, str, str, str]:
    """Return the name, verdict, speed and memory: a row of the table without its last cell, the explanation."""
    if technique.speedup is None:
        return technique.name, technique.verdict, "", ""
    return (
        technique.name,
        technique.verdict,
        speed_text(technique.speedup, technique.speedup_interval),
        memory_text(technique),
    )


HEADING = ("technique", "verdict", "speed", "memory", "why")


def split_texts(split: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return each part of a step with its share, such as `62 %`, without parts that take hardly any time."""
    return [(part, f"{100 * share:.0f} %") for part, share in split.items() if share >= LEAST_SHARE]


def without_gain(found: Findings) -> str:
    """Return the result if nothing is recommended; `nothing helps` only if each technique has a verdict."""
    doubtful: dict[str, list[str]] = {}
    for technique in found.techniques:
        if technique.verdict == "gain" and not technique.quality.is_fine:
            what = UNMEASURED if technique.gains_unmeasured else UNSHOWN
            doubtful.setdefault(what, []).append(technique.name)
    if doubtful:
        told = [f"{what}: {', '.join(names)}" for what, names in doubtful.items()]
        return "; ".join(["nothing is recommended", *told])
    if undecided := [each.name for each in found.techniques if each.is_open or each.is_unconfirmed]:
        return f"nothing is recommended; not decided: {', '.join(undecided)}"
    if any(technique.verdict != "not applicable" for technique in found.techniques):
        return "nothing helps"
    return "nothing was measured; give tuneup.budget_seconds more if there was no time for it"
