"""Findings of a study in words: for the terminal, a notebook, MLflow and the recommended config."""

from collections.abc import Sequence
from math import isfinite

from paceline.batch_scaling.critical_batch import CriticalBatch, smallest_untrainable
from paceline.batch_scaling.findings import LargerBatchCheck, ScaleFindings, ScaleRow
from paceline.batch_scaling.goodput import fastest_not_considered
from paceline.reports.text import counted

HEADING = ("batch", "workers", "lr", "samples", "steps", "time", "worker time", "")


def rows_of(findings: ScaleFindings) -> list[tuple[str, ...]]:
    """Return a row for each batch size and number of workers."""
    return [
        (
            f"{row.global_batch_size:,}",
            str(row.workers),
            lr_text(findings, row),
            f"{row.samples:,.0f}",
            f"{row.steps:,.0f}",
            row_time_text(row),
            seconds_text(row.worker_seconds),
            marks_text(findings, row),
        )
        for row in findings.table
    ]


def lr_text(findings: ScaleFindings, row: ScaleRow) -> str:
    """Return the peak learning rate, such as `0.08`; `0.02 x gain` with adascale."""
    size = row.global_batch_size
    follows_gain = size > findings.own_batch_size and findings.rules.at(size) == "adascale"
    return f"{row.lr:.4g} x gain" if follows_gain else f"{row.lr:.4g}"


def row_time_text(row: ScaleRow) -> str:
    """Return `0.44 s (0.35 s to 0.55 s)`; without the interval if it is not known."""
    if row.seconds_interval is None:
        return seconds_text(row.seconds)
    return f"{seconds_text(row.seconds)} ({' to '.join(map(seconds_text, row.seconds_interval))})"


def marks_text(findings: ScaleFindings, row: ScaleRow) -> str:
    """Return what distinguishes a row, such as `as it is, cheapest`."""
    failed = smallest_untrainable(findings.branches)
    is_own = row.global_batch_size == findings.own_batch_size and row.workers == findings.workers
    named = {
        "as it is": is_own,
        "fastest": row == findings.fastest,
        "cheapest": row == findings.cheapest,
        "knee": row == findings.knee,
        "extrapolated": row.is_extrapolated,
        "not within the config's length": not row.is_in_reach and row.global_batch_size < failed,
        "no finite loss": row.global_batch_size >= failed,
    }
    return ", ".join(name for name, holds in named.items() if holds)


def summary_text(findings: ScaleFindings) -> str:
    """Return the answer in a sentence."""
    if findings.undecided:
        return f"not decided: {findings.undecided}"
    if not findings.recommended:
        own = f"{findings.own_batch_size:,}"
        best = (
            f"no larger batch was shown to be faster than the config's own of {own}"
            if findings.verifications
            else f"the config is best as it is, with a batch of {own}"
        )
        return "; ".join(filter(None, [best, not_considered_text(findings)]))
    rule = findings.recommended["optimizer.lr_scaling"]
    sizes = recommended_sizes(findings)
    batch = f"a batch of {sizes[0]:,}" if len(sizes) == 1 else f"a batch that grows from {sizes_text(sizes)}"
    start = f"{batch} with the {rule} rule reaches {findings.target.text}"
    if findings.speedup is not None:
        ends = findings.speedup_interval or (findings.speedup, findings.speedup)
        return f"{start} {findings.speedup:.2f}x as fast ({corrected_text(findings.speedup, *ends)})"
    return f"{start} in {seconds_text(findings.predicted_seconds or 0.0)}, as predicted; not verified"


def not_considered_text(findings: ScaleFindings) -> str:
    """Return the fastest row that could not be recommended, if the config as it is takes longer; else an empty text."""
    best = fastest_not_considered(findings)
    if best is None:
        return ""
    where = batch_text([best.global_batch_size], best.workers)
    if not best.is_extrapolated:
        return f"{where} would take {seconds_text(best.seconds)}, predicted from its measured step"
    is_here = best.workers == findings.workers
    error = findings.step_time_error if is_here else findings.other_workers_error or findings.step_time_error
    how = "extrapolated" if error is None else f"extrapolated by a model of steps with a median error of {error:.0%}"
    return f"{where} would take {seconds_text(best.seconds)}, {how}"


def corrected_text(estimate: float, low: float, high: float) -> str:
    """Return `corrected CI 1.50-2.20`; an end of 100 times the estimate and more is `no limit`."""
    return f"corrected CI {low:.2f}-{'no limit' if high > 100 * estimate else f'{high:.2f}'}"


def check_text(check: LargerBatchCheck, most_samples: int) -> str:
    """Return `batch 64 took 8,653 samples to the target, 9,680 were predicted`.

    Args:
        most_samples: samples of the config's length of training.
    """
    size, predicted = f"batch {check.batch_size:,}", f"{check.predicted_samples:,.0f} were predicted"
    if check.samples is None:
        return f"{size} did not reach the target within {most_samples:,} samples, {predicted}"
    return f"{size} took {check.samples:,} samples to the target, {predicted}"


def critical_text(critical: CriticalBatch | None) -> str:
    """Return `420 samples (95 % CI 250 to 700; 310 to 560 over training)`; without that range where there is one point
    of training."""
    if critical is None:
        return "not measured"
    if not isfinite(critical.size):
        return "larger than any batch that was tried"
    ranges = [] if critical.interval is None else [f"95 % CI {range_text(*critical.interval)}"]
    if len(critical.by_samples) > 1:
        ranges.append(f"{range_text(critical.low, critical.high)} over training")
    size = f"{count_text(critical.size)} samples"
    return f"{size} ({'; '.join(ranges)})" if ranges else size


def range_text(low: float, high: float | None) -> str:
    """Return `310 to 560`, or `310 to no limit`."""
    return f"{count_text(low)} to {count_text(high) if high is not None and isfinite(high) else 'no limit'}"


def count_text(value: float) -> str:
    """Return samples without a fraction, unless they are few: `1,024`, `0.13`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def noise_text(findings: ScaleFindings) -> str:
    """Return the newest noise scale with its interval."""
    if not findings.noise:
        return ""
    last = findings.noise[-1]
    return f"{count_text(last.value)} samples (95 % CI {range_text(last.low, last.high)})"


def time_text(findings: ScaleFindings) -> str:
    """Return predicted and measured time to the target; where nothing is recommended, that of the config as it is."""
    if not findings.recommended and findings.own_seconds is not None:
        return f"as it is {seconds_text(findings.own_seconds)}, measured"
    parts = [
        f"predicted {seconds_text(findings.predicted_seconds)}" if findings.predicted_seconds is not None else "",
        f"measured {seconds_text(findings.measured_seconds)}" if findings.measured_seconds is not None else "",
        f"as it is {seconds_text(findings.own_seconds)}" if findings.own_seconds is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def start_text(samples: int) -> str:
    """Return the place where a branch begins: `from the start`, or `after 4,000 samples`."""
    return f"after {samples:,} samples" if samples else "from the start"


def batch_text(sizes: Sequence[int], workers: int) -> str:
    """Return `batch 128, 2 workers`; `batch 32 to 128, 2 workers` for one that grows."""
    return f"batch {sizes_text(sizes)}, {counted(workers, 'worker')}"


def sizes_text(sizes: Sequence[int]) -> str:
    """Return `128`, or `32 to 128` for a batch size that grows."""
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def recommended_sizes(findings: ScaleFindings) -> list[int]:
    """Return the recommended global batch size, several where it grows; empty where nothing is recommended."""
    stages = findings.recommended.get("data.batch_size_schedule")
    if stages:
        return [stage["global_batch_size"] for stage in stages]
    size = findings.recommended.get("data.global_batch_size")
    return [] if size is None else [size]


def seconds_text(seconds: float) -> str:
    """Return `12.3 s`, `4.5 min` or `2.1 h`."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
