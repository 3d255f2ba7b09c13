"""Head of a study's report: the answer, the changes, the certainty, and the figures below."""

from math import isfinite

from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.texts import corrected_text, count_text, range_text, seconds_text, summary_text
from paceline.config.overrides import override_texts
from paceline.reports.page import Tile
from paceline.reports.text import counted


def headline(findings: ScaleFindings) -> str:
    """Such as `A batch of 64 with the linear rule reaches val/loss <= 0.1 1.83x as fast (corrected CI 1.50-2.20).`"""
    text = summary_text(findings)
    return f"{text[0].upper()}{text[1:]}."


def changes_text(findings: ScaleFindings) -> str:
    """The recommended changes, a line each, as the command line takes them."""
    return "\n".join(override_texts(findings.recommended))


def certainty(findings: ScaleFindings) -> str:
    """Return a few sentences on how certain the figures are."""
    parts = []
    if findings.verifications:
        seeds = counted(len(findings.verifications[0].samples), "seed")
        parts.append(
            f"Trained to the target with {seeds} each; the interval is over the seeds, and corrected: "
            "a false recommendation has a chance of at most 5 % with most models."
        )
    elif findings.check is not None:
        size = f"{findings.check.batch_size:,}"
        parts.append(f"Of the larger batches, {size} was trained to the target, with one seed: times are predictions.")
    else:
        parts.append("Nothing was trained to the target with larger batches: the times are predictions.")
    if findings.step_time_error is not None:
        error = f"{100 * findings.step_time_error:.1f} %"
        parts.append(f"The median error of step times that were left out of the fit is {error}.")
    if findings.other_workers_error is not None:
        counts = ", ".join(map(str, findings.other_workers))
        error = f"{100 * findings.other_workers_error:.1f} %"
        own = counted(findings.workers, "worker")
        parts.append(f"Steps with other numbers of workers ({counts}) were measured.")
        parts.append(f"Predicted from {own}, their median error is {error}.")
    if any(row.is_extrapolated for row in findings.table):
        parts.append("Extrapolated rows were not measured, and are never recommended.")
    return " ".join(parts)


def tiles(findings: ScaleFindings) -> list[Tile]:
    """Return the figures below the answer."""
    found, critical = [], findings.critical
    if findings.speedup is not None:
        ends = findings.speedup_interval or (findings.speedup, findings.speedup)
        text = corrected_text(findings.speedup, *ends)
        found.append(Tile("speed to the target", f"{findings.speedup:.2f}x", text))
    seconds = findings.measured_seconds or findings.predicted_seconds
    if seconds is not None:
        how = "measured" if findings.measured_seconds else "predicted"
        own = "" if findings.own_seconds is None else f", {seconds_text(findings.own_seconds)} as it is"
        found.append(Tile("time to the target", seconds_text(seconds), f"{how}{own}"))
    if critical is not None and isfinite(critical.size):
        has_range = len(critical.by_samples) > 1
        spread = f"{range_text(critical.low, critical.high)} over training" if has_range else "samples"
        found.append(Tile("critical batch size", count_text(critical.size), spread))
    elif critical is not None:
        found.append(Tile("critical batch size", "not reached", "larger than any batch that was tried"))
    if findings.noise and isfinite(findings.noise[-1].value):
        last = findings.noise[-1]
        found.append(
            Tile("noise scale at the end", count_text(last.value), f"95 % CI {range_text(last.low, last.high)}")
        )
    if findings.branches:
        rule, size = findings.rules.by_size[0][1], findings.rules.holds_to
        found.append(Tile("learning-rate rule", rule, f"up to a batch of {size:,}"))
    found.append(Tile("samples spent", f"{findings.samples_spent:,}", f"{findings.samples_to_target:,} to the target"))
    return found
