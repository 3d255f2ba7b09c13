"""Head of a tune-up's report: the answer, the changes, what does not help, and the certainty."""

from paceline.config.overrides import override_texts
from paceline.reports.page import Tile
from paceline.tuneups.explanations import unhelpful
from paceline.tuneups.outcome import Findings, Quality
from paceline.tuneups.texts import (
    interval_text,
    margin_text,
    noise_text,
    quality_text,
    ratio_text,
    split_texts,
    without_gain,
)


def headline(findings: Findings) -> str:
    """Such as `5.35 times as fast (4.85-6.00), at equivalent quality`."""
    if not findings.recommended or findings.speedup is None:
        told = without_gain(findings)
        return f"{told[0].upper()}{told[1:]}."
    value, _, ends = interval_text(findings.speedup, findings.speedup_interval).partition(" ")
    return f"{value} times as fast {ends}, {_quality_words(findings.quality)}".replace(" ,", ",") + "."


def changes_text(findings: Findings) -> str:
    """The recommended changes, a line each, as the command line takes them."""
    return "\n".join(override_texts(findings.recommended))


def certainty(findings: Findings) -> str:
    """Return a few sentences on how certain the figures are."""
    parts = []
    if findings.recommended:
        parts.append(
            f"Confirmed over {findings.builds} builds in fresh processes; the interval holds at every look at them."
        )
    parts.append(f"Noise: {noise_text(findings.noise)}.")
    quality = findings.quality
    if quality.difference is not None and quality.margin is not None:
        parts.append(f"{quality_text(quality)}; what counts as equal was fixed before: {margin_text(quality)}.")
    elif findings.recommended and quality.verdict == "same":
        parts.append("What is recommended computes the same, by how it works.")
    elif findings.recommended:
        parts.append(f"The quality is {quality_text(quality)}.")
    return " ".join(parts)


def recommended_names(findings: Findings) -> str:
    """Return the techniques that are recommended, in a line."""
    return ", ".join(technique.name for technique in findings.techniques if technique.is_recommended)


def unhelpful_text(findings: Findings) -> str:
    """Return the techniques that are not recommended, by the reason, in a line; empty where there are none."""
    groups = [f"{reason}: {', '.join(names)}" for reason, names in unhelpful(findings)]
    unmeasured = [technique for technique in findings.techniques if technique.verdict == "not applicable"]
    if names := [technique.name for technique in unmeasured if technique.is_untried]:
        groups.append(f"no time was left: {', '.join(names)}")
    if count := len(unmeasured) - len(names):
        groups.append(f"{count} not applicable, with the reason in the table")
    return "; ".join(groups)


def tiles(findings: Findings) -> list[Tile]:
    """Return the figures below the answer."""
    found = []
    if findings.recommended and findings.speedup is not None:
        interval = interval_text(findings.speedup, findings.speedup_interval).partition(" ")[2]
        found.append(Tile("speed, all together", f"{findings.speedup:.2f}x", interval.strip("()")))
    if findings.recommended:
        found.append(Tile("quality", findings.quality.verdict, _margin_words(findings.quality)))
    if findings.peak_memory_ratio is not None:
        found.append(Tile("peak memory", ratio_text(findings.peak_memory_ratio), "of the baseline's"))
    if findings.bottleneck:
        kind, _, _ = findings.bottleneck.partition(":")
        share = dict(split_texts(findings.split)).get(kind, "")
        found.append(Tile("bottleneck", kind.replace("_", " "), f"{share} of a step" if share else ""))
    if findings.noise is not None:
        found.append(Tile("noise", f"{100 * findings.noise:.1f} %", "between builds of the same config"))
    return found


def _quality_words(quality: Quality) -> str:
    if quality.verdict == "same":
        return "computing the same"
    within = "" if quality.margin is None else f" within {quality.margin:.3g}"
    words = {
        "equivalent": f"{quality.metric} equal{within}",
        "better": f"{quality.metric} better",
        "not measured": "quality not measured",
    }
    return words.get(quality.verdict, f"{quality.metric} not worse{within}" if quality.is_not_inferior else "undecided")


def _margin_words(quality: Quality) -> str:
    if quality.change is None:
        return ""
    within = "" if quality.margin is None else f", margin {margin_text(quality)}"
    return f"{quality.metric} {quality.change[0]:+.3g}{within}"
