"""The text on a run's page in MLflow: what came out, and how to get it again."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from paceline.tracking import metrics
from paceline.tracking.points import Point

_LOWER_IS_BETTER = re.compile(r"loss|error|perplexity|seconds|_bytes|wait")
_ADDRESS = re.compile(r"://|www(?=\.)|@", re.IGNORECASE)
"""Where a Markdown reader takes plain text for a link."""
_UNITS = {
    metrics.SAMPLES_PER_SECOND: "samples/s",
    metrics.STEP_SECONDS: "s",
    metrics.PEAK_MEMORY_BYTES: "bytes",
}
_CONTEXT = (metrics.EPOCH, metrics.LR, metrics.GRAD_NORM, metrics.SKIPPED_STEPS)
"""Metrics that have a last value, but no best one."""


def summary(name: str, points: Sequence[Point], status: str, reason: str | None, tags: Mapping[str, str]) -> str:
    """Markdown with the outcome, a table of final and best metrics, and the command that runs it again."""
    parts = [f"## {escaped(name)}", _outcome(points, status)]
    if reason:
        parts.append(code(reason))
    if points:
        parts.append(_table(points))
    parts.append(_reproduction(tags))
    return "\n\n".join(part for part in parts if part)


def _outcome(points: Sequence[Point], status: str) -> str:
    steps = max((point.step for point in points), default=0)
    rate = _last(points).get(metrics.SAMPLES_PER_SECOND)
    speed = f", {rate.value:,.0f} samples/s" if rate else ""
    return f"**{status.lower()}** after {steps:,} optimizer steps{speed}."


def _table(points: Sequence[Point]) -> str:
    rows = ["| metric | last | best | at step |", "|---|---:|---:|---:|"]
    for key, last in sorted(_last(points).items()):
        best = None if key in _CONTEXT else _best([point for point in points if point.key == key])
        better = f"{number(best.value)} | {best.step}" if best else " | "
        unit = f" {_UNITS[key]}" if key in _UNITS else ""
        rows.append(f"| {escaped(key)} | {number(last.value)}{unit} | {better} |")
    return "\n".join(rows)


def _reproduction(tags: Mapping[str, str]) -> str:
    command = tags.get(metrics.COMMAND)
    if not command:
        return ""
    commit = tags.get(metrics.GIT_COMMIT)
    lines = [f"git checkout {commit}"] if commit else []
    changed = " (files had been changed since that commit)" if tags.get(metrics.GIT_DIRTY) == "true" else ""
    block = code("\n".join([*lines, command]))
    return f"To get it again{changed}:\n\n{block}"


def _last(points: Sequence[Point]) -> dict[str, Point]:
    return {point.key: point for point in points}


def _best(points: Sequence[Point]) -> Point | None:
    comparable = [point for point in points if point.value == point.value]
    if not comparable:
        return None
    choose = min if _LOWER_IS_BETTER.search(points[0].key) else max
    return choose(comparable, key=lambda point: point.value)


def number(value: float) -> str:
    """A value as a table shows it: with four digits, or in full from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def escaped(text: str) -> str:
    """Text as one line of Markdown that shows it and does nothing else: no table cell, HTML, link or address."""
    line = escape(" ".join(text.split()), quote=False)  # escaped quotes would be escaped once more below
    return _ADDRESS.sub("\\g<0>\u200b", re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", line))


def code(text: str) -> str:
    """Text as a block of code that it cannot end."""
    return "```\n" + text.replace("```", "'''") + "\n```"
